"""Language models of torch as models of `rb.text`."""
