"""The topics and subscriptions of the catalog that this broker serves, and the changes to them."""
