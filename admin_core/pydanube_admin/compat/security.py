"""SecurityAdmin, roles and bindings for the original's tool: ours, planned and audited like all changes."""

from __future__ import annotations

from typing import Any

from pydanube_core.errors import GrantNotFound, InvalidArgument
from pydanube_core.generated import danube_admin_pb2 as pb

from pydanube_admin.compat.asking import AskingService


class Security(AskingService):
    """The methods of the service."""

    async def create_role(self, request: pb.CreateRoleRequest) -> pb.CreateRoleResponse:
        role = request.role
        if role.system:
            raise InvalidArgument(
                f"system: role {role.name[:64]!r} cannot be the broker's own, which no caller creates: leave it out",
                field="system",
                value=True,
            )
        await self._ask("roles.create", {"role": role.name, "permissions": ",".join(role.permissions)})
        return pb.CreateRoleResponse(success=True)

    async def get_role(self, request: pb.GetRoleRequest) -> pb.GetRoleResponse:
        return pb.GetRoleResponse(role=_role(await self._ask("roles.get", {"role": request.name})))

    async def list_roles(self, request: pb.Empty) -> pb.ListRolesResponse:
        return pb.ListRolesResponse(roles=[_role(each) for each in await self._ask.every("roles.list")])

    async def delete_role(self, request: pb.DeleteRoleRequest) -> pb.DeleteRoleResponse:
        await self._ask("roles.delete", {"role": request.name})
        return pb.DeleteRoleResponse(success=True)

    async def create_binding(self, request: pb.CreateBindingRequest) -> pb.CreateBindingResponse:
        binding = request.binding
        await self._ask(
            "bindings.create",
            {
                "binding": binding.id,
                "principal": binding.principal_name,
                "principal_type": binding.principal_type,
                "roles": ",".join(binding.role_names),
                "scope": binding.scope,
                "resource": binding.resource_name,
            },
        )
        return pb.CreateBindingResponse(success=True)

    async def get_binding(self, request: pb.GetBindingRequest) -> pb.GetBindingResponse:
        return pb.GetBindingResponse(
            binding=await self._found(request.scope, request.resource_name, request.binding_id)
        )

    async def list_bindings(self, request: pb.ListBindingsRequest) -> pb.ListBindingsResponse:
        _check_scope(request.scope)
        wanted = (request.scope, request.resource_name.strip("/"))
        found = await self._ask.every("bindings.list")
        return pb.ListBindingsResponse(
            bindings=[
                _binding(each) for each in found if (each["scope"], each["resource"].strip("/")) == wanted
            ]
        )

    async def list_all_bindings(self, request: pb.Empty) -> pb.ListBindingsResponse:
        return pb.ListBindingsResponse(
            bindings=[_binding(each) for each in await self._ask.every("bindings.list")]
        )

    async def delete_binding(self, request: pb.DeleteBindingRequest) -> pb.DeleteBindingResponse:
        found = await self._found(request.scope, request.resource_name, request.binding_id)
        await self._ask("bindings.delete", {"binding": found.id})
        return pb.DeleteBindingResponse(success=True)

    async def _found(self, scope: str, resource: str, binding_id: str) -> pb.BindingDefinition:
        request = pb.ListBindingsRequest(scope=scope, resource_name=resource)
        for binding in (await self.list_bindings(request)).bindings:
            if binding.id == binding_id:
                return binding
        raise GrantNotFound(
            f"there is no binding {binding_id!r} on that {scope}", field="binding_id", value=binding_id
        )


def _check_scope(scope: str) -> None:
    if scope not in ("cluster", "namespace", "topic"):
        raise InvalidArgument(
            f"scope {scope[:100]!r}: write cluster, namespace or topic", field="scope", value=scope[:100]
        )


def _role(found: dict[str, Any]) -> pb.RoleDefinition:
    return pb.RoleDefinition(name=found["role"], permissions=found["permissions"], system=found["system"])


def _binding(found: dict[str, Any]) -> pb.BindingDefinition:
    return pb.BindingDefinition(
        id=found["binding"],
        principal_type=found["principal_type"],
        principal_name=found["principal"],
        role_names=found["roles"],
        scope=found["scope"],
        resource_name=found["resource"],
    )
