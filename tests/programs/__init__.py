"""Programs as users write them."""
