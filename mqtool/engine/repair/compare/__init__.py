"""What two stores have of each other."""
