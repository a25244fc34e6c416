"""What `sp serve` comes to: a service in this process, or replicas of it behind a door."""
