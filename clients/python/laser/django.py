"""Django: fields, an index and distances. With psycopg 3, or psycopg 2."""

import numpy as np
from django import forms
from django.contrib.postgres.indexes import PostgresIndex
from django.core.exceptions import ValidationError
from django.db.models import Field, FloatField, Func, Value

from . import wire

__all__ = [
    "CosineDistance",
    "EmbeddingField",
    "HalfEmbeddingField",
    "L1Distance",
    "L2Distance",
    "LaserIndex",
    "MaxInnerProduct",
]


class _EmptyValues:
    """What Django asks a value for with ``in``: an array that is compared with others is no truth value."""

    def __contains__(self, value):
        return value is None or (isinstance(value, (str, list, tuple)) and len(value) == 0)


class _EmbeddingFormField(forms.CharField):
    """The text form of an embedding."""

    empty_values = _EmptyValues()

    def __init__(self, *args, name, **options):
        self._name = name
        options.setdefault("empty_value", None)
        super().__init__(*args, **options)

    def prepare_value(self, value):
        return value if value in self.empty_values or isinstance(value, str) else wire.to_text(value)

    def to_python(self, value):
        text = super().to_python(value)
        return text if text in self.empty_values else _parsed(text, self._name)

    def has_changed(self, initial, data):
        if self.disabled:
            return False
        try:
            given = self.to_python(data)
            initial = self.to_python(initial) if isinstance(initial, str) else initial
        except ValidationError:
            return True
        if initial in self.empty_values or given in self.empty_values:
            return (initial in self.empty_values) != (given in self.empty_values)
        return not np.array_equal(initial, given)


def _parsed(text, name):
    try:
        return wire.to_array(wire.from_text(text, name))
    except ValueError as error:
        raise ValidationError(f"Enter numbers as in [1.5,2]: {error}", code="invalid") from error


class EmbeddingField(Field):
    """``embedding(dimensions)``, or ``embedding`` of any. Values are arrays of ``float32``."""

    description = "An embedding of laser"
    empty_strings_allowed = False
    empty_values = _EmptyValues()
    _name = "embedding"

    def __init__(self, *args, dimensions=None, **options):
        self.dimensions = dimensions
        super().__init__(*args, **options)

    def deconstruct(self):
        name, path, args, options = super().deconstruct()
        if self.dimensions is not None:
            options["dimensions"] = self.dimensions
        return name, path, args, options

    def db_type(self, connection):
        return self._name if self.dimensions is None else f"{self._name}({self.dimensions})"

    def from_db_value(self, value, expression, connection):
        return wire.from_text(value, self._name) if isinstance(value, str) else value

    def to_python(self, value):
        if value is None or isinstance(value, np.ndarray):
            return value
        if isinstance(value, str):
            return _parsed(value, self._name)
        try:
            return wire.to_array(value)
        except ValueError as error:
            raise ValidationError(str(error), code="invalid") from error

    def get_prep_value(self, value):
        if value is None or isinstance(value, str) or hasattr(value, "resolve_expression"):
            return value
        return wire.to_text(value)

    def value_to_string(self, obj):
        return self.get_prep_value(self.value_from_object(obj))

    def formfield(self, **options):
        return super().formfield(**{"form_class": _EmbeddingFormField, "name": self._name, **options})


class HalfEmbeddingField(EmbeddingField):
    """``halfembedding(dimensions)``. Values are arrays of ``float16``."""

    description = "An embedding of laser in half precision"
    _name = "halfembedding"


class LaserIndex(PostgresIndex):
    """An index of laser's. ``options`` are its storage parameters: ``LaserIndex(…, options={"m": 32})``."""

    suffix = "laser"

    def __init__(self, *expressions, options=None, **arguments):
        self.options = dict(options or {})
        super().__init__(*expressions, **arguments)

    def deconstruct(self):
        path, args, arguments = super().deconstruct()
        if self.options:
            arguments["options"] = self.options
        return path, args, arguments

    def get_with_params(self):
        def quoted(value):
            return "'" + str(value).replace("'", "''") + "'"

        return [f"{name} = {quoted(value)}" for name, value in self.options.items()]


class _Distance(Func):
    output_field = FloatField()
    function = None
    template = "(%(expressions)s)"

    def __init__(self, expression, other, **extra):
        if not hasattr(other, "resolve_expression"):
            other = Value(wire.to_text(other))
        super().__init__(expression, other, **extra)


class L2Distance(_Distance):
    arg_joiner = " <-> "


class CosineDistance(_Distance):
    arg_joiner = " <=> "


class MaxInnerProduct(_Distance):
    """The inner product with its sign changed."""

    arg_joiner = " <#> "


class L1Distance(_Distance):
    arg_joiner = " <+> "
