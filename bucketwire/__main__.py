"""`python -m bucketwire` is `bucketwire`."""

from bucketwire.start import main

if __name__ == "__main__":
    main()
