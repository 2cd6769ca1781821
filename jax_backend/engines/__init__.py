"""How the public functions are carried out, one module for each way in which states are stored."""
