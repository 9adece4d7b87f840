from jellybean.serving.client import Client as Client

__version__: str
