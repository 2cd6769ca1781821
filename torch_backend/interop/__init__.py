"""How states and samples travel: DLPack, state dicts, other processes, devices."""
