"""`python -m app.cli` is `bucketwire`."""

from app.cli import main

if __name__ == "__main__":
    main()
