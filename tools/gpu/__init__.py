"""Everything that there is to do on a machine with a GPU, in one command: `make gpu`."""
