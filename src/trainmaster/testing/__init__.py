"""What plug-ins inherit to prove themselves, and the simulation that our decisions must survive."""
