"""Requests to Pravega's controller that its Python client has not, by gRPC.

What they look like is written down as in the controller's own definitions:
https://github.com/pravega/pravega/blob/v0.13.0/shared/controller-api/src/main/proto/Controller.proto
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_PACKAGE = "io.pravega.controller.stream.api.grpc.v1"
_KINDS = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "bool": FieldDescriptorProto.TYPE_BOOL,
}


class Controller:
    """The controller at an address. ``messages``: name -> its fields, each ``number name kind``, the kind being one of
    protobuf's, or another message's name, and ``repeated`` behind it.

    >>> messages = {"ScopeInfo": ["1 scope string"], "Answer": ["1 status int32"]}
    >>> controller = Controller("127.0.0.1:9090", messages)
    >>> controller.ask("createScope", "ScopeInfo", "Answer", scope="shop").status  # doctest: +SKIP
    0
    """

    def __init__(self, address: str, messages: Mapping[str, list[str]], patience: float = 20.0) -> None:
        self._channel, self._patience = grpc.insecure_channel(address), patience
        file = FileDescriptorProto(name="controller.proto", package=_PACKAGE, syntax="proto3")
        for name, fields in messages.items():
            message = file.message_type.add(name=name)
            for field in fields:
                number, called, kind, *repeated = field.split()
                label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
                own = message.field.add(name=called, number=int(number), label=label)
                if kind in _KINDS:
                    own.type = _KINDS[kind]
                else:
                    own.type, own.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
        pool = DescriptorPool()
        pool.Add(file)
        self._types = {name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in messages}

    def ask(self, request: str, takes: str, gives: str, **values: Any) -> Any:
        """Return the answer, a message ``gives``, to a request, which is a message ``takes`` of these values.

        Raises ConnectionError.
        """
        call = self._channel.unary_unary(
            f"/{_PACKAGE}.ControllerService/{request}",
            request_serializer=self._types[takes].SerializeToString,
            response_deserializer=self._types[gives].FromString,
        )
        try:
            return call(self._types[takes](**values), timeout=self._patience)
        except grpc.RpcError as error:
            raise ConnectionError(f"{request}: {error.details()}") from None
