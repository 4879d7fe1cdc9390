"""Jobs of real users: on one machine (`local`)."""
