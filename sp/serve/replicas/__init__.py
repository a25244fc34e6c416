"""Several servers of one pair behind one address: a door, replicas on Ray Serve, and the choice among them."""
