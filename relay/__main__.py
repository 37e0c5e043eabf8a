"""`python -m relay`: the console script, for where its folder isn't on the path. Nothing else is here."""

from relay.cli import main

if __name__ == "__main__":
    main()
