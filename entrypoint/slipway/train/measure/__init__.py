"""What is measured of the hardware and the network, and how it is drawn."""
