"""What `hermes-supervise fleet` shows: the list, the HTML page and what doctor finds."""
