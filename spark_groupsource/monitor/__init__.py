"""Tables of topics, groups, lag and rebalances."""
