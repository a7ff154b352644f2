"""`make image-test`: both images are built and tried as production runs them, also where there is no Docker engine."""
