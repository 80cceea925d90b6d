"""What this broker serves: the catalog's topics and subscriptions brought to life, and the changes to them."""
