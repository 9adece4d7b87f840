from .permissions import parse_permissions as parse_permissions
from .resource import resource_definition as resource_definition
from .resource import to_resource as to_resource
from .run import run_operator as run_operator
