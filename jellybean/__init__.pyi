from jellybean.serving.client import Client as Client
