"""What a program needs to use the catalog."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Access:
    """The address of a catalog and the token with which it is used: that of a try, or of an account."""

    #: The address of the REST protocol, such as http://127.0.0.1:8181.
    uri: str
    token: str = field(repr=False)
    #: The folder of the tables, as a URL.
    warehouse: str
    #: The name of the catalog in SQL.
    catalog: str
    #: Properties of pyiceberg for the storage.
    storage: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def properties(self) -> dict[str, str]:
        """What `pyiceberg.catalog.load_catalog` needs."""
        return {"type": "rest", "uri": self.uri, "token": self.token, "warehouse": self.warehouse, **self.storage}
