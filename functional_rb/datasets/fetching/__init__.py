"""Fetching the files of datasets, over HTTP(S) or from folders: resumed, verified, and whole or not there."""
