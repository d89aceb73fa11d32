"""A loop over subscriptions whose messages must not wait for anything else.

rclpy's executors gather all entities of their nodes, build a wait set and make a task for every callback, in Python:
for a picture that costs more than to take it. Here the subscriptions stay the same, so that one wait set serves for
good. It is made of what `rclpy.wait_for_message` is made of, from Humble on.
"""

from __future__ import annotations

from collections.abc import Sequence

from rclpy.context import Context
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.subscription import Subscription


class SubscriptionLoop:
    """Waits for messages and QoS events of some subscriptions, and calls their callbacks in the thread that waits.

    What else their node has is not served, and no executor may spin the node.

    Args:
        subscriptions: with callbacks that are plain functions of one message; they must outlive the loop.
        context: of their node.
    """

    def __init__(self, subscriptions: Sequence[Subscription], context: Context) -> None:
        self._subscriptions = list(subscriptions)
        self._events = [event for s in self._subscriptions for event in s.event_handlers]
        self._wait_set = rclpy_implementation.WaitSet(
            len(self._subscriptions), 0, 0, 0, 0, len(self._events), context.handle
        )

    def spin_once(self, timeout_ns: int) -> None:
        """Wait for something to come, then call back for one message of each subscription that has any, in their order.

        Args:
            timeout_ns: return after this, if nothing comes [ns].

        Whatever a callback raises is passed on.
        """
        wait_set = self._wait_set
        wait_set.clear_entities()
        for subscription in self._subscriptions:
            wait_set.add_subscription(subscription.handle)
        for event in self._events:
            event.add_to_wait_set(wait_set)
        wait_set.wait(timeout_ns)
        ready = wait_set.get_ready_entities("subscription")
        for subscription in self._subscriptions:
            if subscription.handle.pointer in ready:
                taken = subscription.handle.take_message(subscription.msg_type, subscription.raw)
                if taken is not None:
                    subscription.callback(taken[0])
        for event in self._events:
            if event.is_ready(wait_set):
                happened = event.take_data()
                if happened is not None:
                    event.callback(happened)
