"""The sub-commands of `relay` that this package brings, one module each; found through entry points."""
