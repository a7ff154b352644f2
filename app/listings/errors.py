"""The error of a listing that nothing may go by."""


class BadListing(Exception):
    """The listing is none, is not of the bucket, or may lack a part of it; the message says why."""
