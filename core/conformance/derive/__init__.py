"""What each op must give, derived in numpy float64 or plain Python loops, apart from the references."""
