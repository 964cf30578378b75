"""`slipway selftest`: proves this image, or this checkout, on the devices that are here."""
