"""How the layers of an Alpa plan are split over the devices of their stages, as text and as a picture."""
