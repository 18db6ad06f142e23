"""The broker's settings, with Kafka's names if Kafka has the same setting.

The sources of a value, in order of increasing precedence: the default, the TOML file (quoted keys in its table
`[broker]`), the environment (`MUSTER_` and the key in capitals, dots as underscores), `-o key=value`, command line
flags. Every source rejects unknown keys, and the message suggests the nearest known one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from muster.broker.settings import INT_MAX, LONG_MAX, Setting, SettingType, Source, Value, show
from muster.coordinator.groups.group_pattern import GroupPattern
from muster.errors import ConfigError

FSYNC_POLICIES = ("interval", "always", "never")
CLEANUP_POLICIES = ("compact", "delete")
COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
GROUP_STORES = ("log", "zookeeper")
ENVIRONMENT_PREFIX = "MUSTER_"

S, K = Setting, SettingType
_SETTINGS = (
    # --- identity and address
    S("node.id", K.INT, 1, "The id of this broker.", 0),
    S("listeners", K.LIST, "PLAINTEXT://127.0.0.1:9092", "The address to listen on. Port 0 means a free port."),
    S("advertised.listeners", K.LIST, None, "The address that clients connect to; by default the listener's address."),
    S("draft.listener", K.STRING, None,
      "The address of a second listener, for members of `server.assigned.groups` that use the protocol of Kafka's "
      "drafts. By default there is none."),
    S("log.dirs", K.LIST, "muster-data", "The folder with topics, groups and offsets."),
    S("broker.rack", K.STRING, None, "The rack of this broker, reported to clients."),
    S("fsync", K.STRING, "interval",
      "When records are synced to disk: `interval`, within a second of being acknowledged; `always`, before being "
      "acknowledged; `never`, when the operating system chooses.", choices=FSYNC_POLICIES),
    # --- cluster
    S("zookeeper.connect", K.STRING, None, "ZooKeeper's addresses, host:port,host:port/chroot, of the cluster that "
      "this broker joins. Without it, the broker is standalone."),
    S("replaced.data.dir", K.STRING, None,
      "The `directory.id` of this broker's former data folder, whose records are lost for good. Without it, a broker "
      "in a cluster does not start with another folder."),
    S("zookeeper.session.timeout.ms", K.INT, 18_000, "How long ZooKeeper waits for an unresponsive broker.", 1),
    S("group.coordinator.store", K.STRING, None,
      "Where groups and offsets are kept. `zookeeper`: in ZooKeeper, so that another broker takes over the groups of a "
      "broker that goes down; the default with zookeeper.connect. `log`: in the topic __consumer_offsets; the only "
      "choice for a standalone broker.", choices=GROUP_STORES),
    # --- connections
    S("max.connections", K.INT, INT_MAX, "The maximum number of connections; further ones are closed immediately.", 0),
    S("connections.max.idle.ms", K.LONG, 600_000, "Idle time after which a connection is closed.", -1),
    S("socket.request.max.bytes", K.INT, 104_857_600, "The largest request; a larger one closes its connection.", 1),
    # Kafka's 50 suits a thread that only accepts connections. The kernel drops connections beyond that, and their
    # clients retry after one second, two, four: a thousand members that start together would take a minute.
    S("socket.listen.backlog.size", K.INT, 1_024, "Connections that may wait to be accepted (Kafka's default: 50).", 1),
    S("queued.max.request.bytes", K.LONG, 268_435_456,
      "The maximum size of all large requests being received or handled, in bytes; further ones wait in their sockets. "
      "The metadata of group members has a separate limit of the same size. -1 means unlimited (Kafka's default).", -1),
    S("queued.max.response.bytes", K.LONG, 268_435_456,
      "The maximum size of all unread responses without their records, in bytes; above that, the connection that has "
      "read nothing for the longest time is closed. -1 means unlimited.", -1),
    S("fetch.max.bytes", K.INT, 57_671_680, "The maximum size of the records in one fetch response, in bytes.", 1024),
    S("max.incremental.fetch.session.cache.slots", K.INT, 1_000, "How many fetch sessions are kept (KIP-227).", 0),
    S("max.incremental.fetch.session.cache.partitions", K.INT, 100_000,
      "The maximum number of partitions in all fetch sessions together, about 300 bytes each; a consumer beyond that "
      "sends its full list of partitions with every fetch.", 0),
    # --- topics
    S("auto.create.topics.enable", K.BOOLEAN, True, "Whether a metadata request for a topic creates it."),
    S("delete.topic.enable", K.BOOLEAN, True, "Whether topics may be deleted."),
    S("num.partitions", K.INT, 1, "Partitions of a new topic by default.", 1),
    S("default.replication.factor", K.INT, 1, "Replicas of a new topic by default: only 1 is possible.",
      1, 1),
    S("min.insync.replicas", K.INT, 1, "Replicas that must have a record before acks=all is acknowledged (unused).", 1),
    S("message.max.bytes", K.INT, 1_048_588, "The largest record batch, as compressed by the producer.", 0),
    S("compression.type", K.STRING, "producer", "The codec of stored batches; `producer`: as they were sent.",
      choices=COMPRESSION_TYPES),
    S("compression.gzip.level", K.INT, -1, "Level of gzip; -1 is gzip's default.", 1, 9, apart=-1),
    S("compression.lz4.level", K.INT, 9, "Level of lz4 (unused).", 1, 17),
    S("compression.zstd.level", K.INT, 3, "Level of zstd.", -131_072, 22),
    S("unclean.leader.election.enable", K.BOOLEAN, False, "Whether an out-of-sync replica may become leader (unused)."),
    # --- the log
    S("log.cleanup.policy", K.LIST, "delete", "What to do with old records: `delete`, `compact` or both.",
      choices=CLEANUP_POLICIES),
    S("log.retention.hours", K.INT, 168, "Minimum hours to keep a record; log.retention.minutes and .ms override it."),
    S("log.retention.minutes", K.INT, None, "Minimum minutes to keep a record; log.retention.ms overrides it."),
    S("log.retention.ms", K.LONG, None, "Minimum milliseconds to keep a record; -1 means forever."),
    S("log.retention.bytes", K.LONG, -1, "Maximum size of a partition; -1 means unlimited.", -1),
    S("log.retention.check.interval.ms", K.LONG, 300_000, "How often to check for old records.", 1),
    S("log.segment.bytes", K.INT, 1_073_741_824, "Size at which a segment file is closed.", 1_048_576),
    S("log.segment.delete.delay.ms", K.LONG, 60_000, "How long a deleted segment stays on disk (unused).", 0),
    S("log.roll.hours", K.INT, 168, "Age in hours at which a segment is closed; log.roll.ms overrides it.", 1),
    S("log.roll.ms", K.LONG, None, "Age in milliseconds at which a segment is closed.", 1),
    S("log.roll.jitter.hours", K.INT, 0, "Random amount subtracted from the age (unused).", 0),
    S("log.index.interval.bytes", K.INT, 4_096, "Bytes of log between entries of the offset index.", 0),
    S("log.index.size.max.bytes", K.INT, 10_485_760, "The largest index file (unused).", 4),
    S("log.preallocate", K.BOOLEAN, False, "Whether to preallocate new segments (unused)."),
    S("log.message.timestamp.type", K.STRING, "CreateTime",
      "Whether records have the producer's timestamp or the time of the append.",
      choices=TIMESTAMP_TYPES),
    S("log.message.timestamp.before.max.ms", K.LONG, LONG_MAX, "How far in the past a record's timestamp may be.", 0),
    S("log.message.timestamp.after.max.ms", K.LONG, 3_600_000, "How far in the future a record's timestamp may be.", 0),
    S("log.flush.interval.messages", K.LONG, LONG_MAX, "Records between flushes of a log to disk (unused).", 1),
    S("log.cleaner.backoff.ms", K.LONG, 15_000, "How often to check logs for compaction.", 0),
    S("log.cleaner.min.cleanable.ratio", K.DOUBLE, 0.5, "Share of a log that must be dirty to be compacted.", 0, 1),
    S("log.cleaner.min.compaction.lag.ms", K.LONG, 0, "Minimum time that a record stays uncompacted.", 0),
    S("log.cleaner.max.compaction.lag.ms", K.LONG, LONG_MAX, "Maximum time that a record stays uncompacted.", 1),
    S("log.cleaner.delete.retention.ms", K.LONG, 86_400_000, "How long a tombstone is kept by compaction.", 0),
    S("log.local.retention.ms", K.LONG, -2, "Tiered storage, which is off.", -2),
    S("log.local.retention.bytes", K.LONG, -2, "Tiered storage, which is off.", -2),
    S("producer.id.expiration.ms", K.INT, 86_400_000, "How long an idle producer's sequence numbers are kept.", 1),
    # --- transactions
    S("transaction.version", K.INT, 2,
      "The finalized level of the feature, until it is updated with kafka-features.sh: from 2 on, each transaction has "
      "its own epoch, so that a late request of an earlier transaction is refused (KIP-890). Clients that do not "
      "support it are served as with 0. All brokers of a cluster have the level of the first.", 0, 2),
    S("transaction.max.timeout.ms", K.INT, 900_000, "The longest transaction timeout a producer may request.", 1),
    S("transactional.id.expiration.ms", K.INT, 604_800_000,
      "How long a transactional id without a transaction is kept.", 1),
    S("transaction.abort.timed.out.transaction.cleanup.interval.ms", K.INT, 10_000,
      "How often to look for transactions that have timed out.", 1),
    S("transaction.remove.expired.transaction.cleanup.interval.ms", K.INT, 3_600_000,
      "How often to look for expired transactional ids.", 1),
    S("transaction.partition.verification.enable", K.BOOLEAN, True,
      "Whether records of a transaction are refused if its coordinator does not know of them (KIP-890)."),
    S("transaction.state.log.num.partitions", K.INT, 50, "Partitions of __transaction_state.", 1),
    S("transaction.state.log.segment.bytes", K.INT, 104_857_600, "Segment size of __transaction_state.", 1),
    S("add.partitions.to.txn.retry.backoff.ms", K.INT, 20,
      "How long to wait before a partition is added again to a transaction whose predecessor is being finished.", 1),
    S("add.partitions.to.txn.retry.backoff.max.ms", K.INT, 100, "How long to keep trying.", 0),
    # --- groups
    S("group.initial.rebalance.delay.ms", K.INT, 3_000, "How long an empty group waits for more members.", 0),
    S("group.min.session.timeout.ms", K.INT, 6_000, "The shortest session timeout a member may request.", 0),
    S("group.max.session.timeout.ms", K.INT, 1_800_000, "The longest session timeout a member may request.", 0),
    S("group.max.size", K.INT, INT_MAX, "The maximum number of members in a group.", 1),
    S("group.events.enable", K.BOOLEAN, True,
      "Whether this broker records what happens to groups, and why, in the internal topic __group_events."),
    S("group.events.retention.ms", K.LONG, 604_800_000,
      "Minimum time that __group_events keeps an event; -1 means forever. In a cluster the topic keeps the value that "
      "it was created with.", -1),
    S("server.assigned.groups", K.STRING, None,
      "A regular expression for whole group ids. In matching groups the coordinator, not the leader, assigns the "
      "partitions. By default no group matches."),
    S("offsets.topic.num.partitions", K.INT, 50, "Partitions of __consumer_offsets; cannot be changed later.", 1),
    S("offsets.topic.replication.factor", K.SHORT, 1, "Replicas of __consumer_offsets: only 1 is possible.", 1, 1),
    S("offsets.topic.segment.bytes", K.INT, 104_857_600, "Segment size of __consumer_offsets.", 1),
    S("offsets.retention.minutes", K.INT, 10_080, "How long an empty group's offsets are kept.", 1),
    S("offsets.retention.check.interval.ms", K.LONG, 600_000, "How often to check for expired offsets.", 1),
    S("offset.metadata.max.bytes", K.INT, 4_096, "Maximum size of the metadata in an offset commit."),
)  # fmt: skip

SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _SETTINGS}
"""Every setting of the broker, by name."""


DYNAMIC = frozenset({
    "message.max.bytes", "min.insync.replicas", "compression.type", "compression.gzip.level", "compression.lz4.level",
    "compression.zstd.level", "unclean.leader.election.enable", "log.cleanup.policy", "log.retention.ms",
    "log.retention.bytes", "log.segment.bytes", "log.segment.delete.delay.ms", "log.roll.ms",
    "log.index.interval.bytes", "log.index.size.max.bytes", "log.preallocate", "log.message.timestamp.type",
    "log.message.timestamp.before.max.ms", "log.message.timestamp.after.max.ms", "log.flush.interval.messages",
    "log.cleaner.backoff.ms", "log.cleaner.min.cleanable.ratio", "log.cleaner.min.compaction.lag.ms",
    "log.cleaner.max.compaction.lag.ms",
    "log.cleaner.delete.retention.ms", "log.local.retention.ms", "log.local.retention.bytes",
    "producer.id.expiration.ms", "transaction.partition.verification.enable",
})  # fmt: skip
"""The settings that can be changed at run time: as in Kafka 4.2, except listeners and max.connections."""

_RETENTION = (("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000))
_ROLL = (("log.roll.ms", 1), ("log.roll.hours", 3_600_000))
_SAME = {name: tuple(each for each, _ in names) for names in (_RETENTION, _ROLL) for name, _ in names}
"""Settings for the same thing in different units, in order of precedence."""


class BrokerConfig:
    """The settings of one broker: `config["num.partitions"]`. Built by `load`, or from a mapping in tests.

    `is_set` says whether a source set the value. `change` sets values at run time, which take precedence over those at
    start.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Value] = {}
        self._dynamic: dict[Source, dict[str, Value]] = {Source.BROKER: {}, Source.ALL_BROKERS: {}}
        for name, value in (values or {}).items():
            self.set(name, value)

    def set(self, name: str, value: Any, source: str = "") -> None:
        """Set a value, as text or as its own type.

        Raises:
            ConfigError: no such setting, or an invalid value. The message begins with `source`.
        """
        prefix = f"{source}: " if source else ""
        setting = SETTINGS.get(name)
        if setting is None:
            raise ConfigError(f"{prefix}there is no setting {name!r}{nearest(name, SETTINGS)}")
        if value is None:
            self._values.pop(name, None)
            return
        if isinstance(value, list):
            value = ",".join(map(str, value))
        if not isinstance(value, (str, bool, int, float)):
            raise ConfigError(f"{prefix}{name} cannot be a {type(value).__name__}")
        try:
            self._values[name] = setting.parse(show(value) or "")
        except ConfigError as error:
            raise ConfigError(f"{prefix}{error}") from None

    def change(self, source: Source, settings: Mapping[str, str]) -> None:
        """Replace all values from one of the dynamic sources, with values as text.

        Raises:
            ConfigError: no such setting, or an invalid value.
        """
        unknown = [name for name in settings if name not in SETTINGS]
        if unknown:
            raise ConfigError(f"there is no setting {unknown[0]!r}{nearest(unknown[0], SETTINGS)}")
        self._dynamic[source] = {name: SETTINGS[name].parse(text) for name, text in settings.items()}

    def changed(self, source: Source) -> dict[str, str]:
        """The values from a dynamic source, as text."""
        return {name: show(value) or "" for name, value in self._dynamic[source].items()}

    def is_set(self, name: str) -> bool:
        """Whether a source set the value."""
        return self.source(name) is not Source.DEFAULT

    def source(self, name: str) -> Source:
        """The source of a setting's value."""
        for source, values in self._dynamic.items():
            if name in values:
                return source
        return Source.START if name in self._values else Source.DEFAULT

    def __getitem__(self, name: str) -> Value:
        for values in self._dynamic.values():
            if name in values:
                return values[name]
        return self._values[name] if name in self._values else SETTINGS[name].default

    def synonyms(self, name: str) -> list[tuple[str, Value, Source]]:
        """A setting's values as Kafka reports them: from all sources, in order of precedence. The first is one
        that sets this name; equivalents in other units follow. Empty if no source sets this name."""
        found: list[tuple[str, Value, Source]] = []
        names = _SAME.get(name, (name,))
        for source, values in (*self._dynamic.items(), (Source.START, self._values)):
            found += [(each, values[each], source) for each in names if each in values]
        defaults = ((each, SETTINGS[each].default) for each in names)
        found += [(each, value, Source.DEFAULT) for each, value in defaults if value is not None]
        first = next((at for at, (each, _, _) in enumerate(found) if each == name), len(found))
        return found[first:]

    def integer(self, name: str) -> int:
        """The value of a number that is set."""
        value = self[name]
        assert isinstance(value, int), name
        return value

    def text(self, name: str) -> str:
        """The value of a string or list that is set."""
        value = self[name]
        assert isinstance(value, str), name
        return value

    def text_or_none(self, name: str) -> str | None:
        """The value of a string, None if it is not set."""
        return None if self[name] is None else self.text(name)

    def flag(self, name: str) -> bool:
        """The value of a boolean."""
        return bool(self[name])

    @property
    def listener(self) -> tuple[str, int]:
        """Host and port to listen on."""
        return parse_listener("listeners", self.text("listeners"))

    @property
    def advertised(self) -> tuple[str, int | None]:
        """Host and port that clients connect to. A port of None means the listener's.

        Raises:
            ConfigError: no client can connect to the address; Kafka rejects it too.
        """
        if self.is_set("advertised.listeners"):
            host, port = parse_listener("advertised.listeners", self.text("advertised.listeners"))
        else:
            host, port = self.listener[0], 0
        if host in ("", "0.0.0.0", "::"):
            raise ConfigError(
                f"{host or 'an empty host'} means every address of this machine, to which clients cannot connect: "
                "set one that they can reach, with --advertised-host or advertised.listeners"
            )
        return host, port or None

    @property
    def draft_listener(self) -> tuple[str, int] | None:
        """Host and port of the listener for the draft protocol, None if there is none."""
        text = self.text_or_none("draft.listener")
        return parse_listener("draft.listener", text) if text else None

    @property
    def draft_advertised(self) -> str:
        """That listener's advertised host: its own, or that of the other listener."""
        host, _ = self.draft_listener or ("", 0)
        return self.advertised[0] if host in ("", "0.0.0.0", "::") else host

    @property
    def data_dir(self) -> Path:
        """The one folder of `log.dirs`."""
        return Path(self.text("log.dirs")).expanduser()

    @property
    def retention_ms(self) -> int:
        """log.retention.ms, or .minutes, or .hours; -1 (forever) if it is negative."""
        return _first_of(self, _RETENTION)

    @property
    def roll_ms(self) -> int:
        """log.roll.ms or .hours."""
        return _first_of(self, _ROLL)


def _first_of(config: BrokerConfig, names: Iterable[tuple[str, int]]) -> int:
    for name, unit in names:
        value = config[name]
        if isinstance(value, int):
            return value * unit if value >= 0 else -1
    raise AssertionError("the last of them has a default")


def parse_listener(name: str, text: str) -> tuple[str, int]:
    """Host and port of `PLAINTEXT://host:port` or `host:port`."""
    _, _, address = text.rpartition("://")
    host, colon, port = address.rpartition(":")
    if "," in text or not colon or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"{name} must be one address such as PLAINTEXT://127.0.0.1:9092, not {text!r}")
    if "://" in text and not text.upper().startswith("PLAINTEXT://"):
        raise ConfigError(f"{name}: only PLAINTEXT is supported, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listener(host: str, port: int) -> str:
    """An address as in `listeners`."""
    return f"PLAINTEXT://[{host}]:{port}" if ":" in host else f"PLAINTEXT://{host}:{port}"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """`; did you mean …?`, or an empty string if no name is close."""
    import difflib  # needed only for an error message

    found = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {found[0]}?" if found else ""


def environment_name(name: str) -> str:
    """The environment variable of a setting."""
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")


def load(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> BrokerConfig:
    """Load the settings from all sources. `overrides` are `key=value`; a flag of None was not given.

    Raises:
        ConfigError: an unreadable source, an unknown setting, an invalid value.
    """
    config = BrokerConfig()
    if file is not None:
        for name, value in _read_toml(file).items():
            config.set(name, value, str(file))
    _read_environment(config, environment or {})
    for override in overrides:
        name, equals, value = override.partition("=")
        if not equals:
            raise ConfigError(f"-o takes key=value, not {override!r}")
        config.set(name.strip(), value, f"-o {override}")
    for name, value in (flags or {}).items():
        if value is not None:
            config.set(name, value)
    _check(config)
    return config


def check_retention(retention_ms: int) -> None:
    """Reject a retention of zero. Raises ConfigError, in Kafka's words."""
    if retention_ms == 0:
        raise ConfigError("log.retention.ms must be unlimited (-1) or, greater than or equal to 1")


def _check(config: BrokerConfig) -> None:
    _ = config.listener, config.draft_listener
    check_retention(config.retention_ms)
    if "," in config.text("log.dirs"):
        raise ConfigError("log.dirs must be a single folder")
    if config.integer("group.min.session.timeout.ms") > config.integer("group.max.session.timeout.ms"):
        raise ConfigError("group.min.session.timeout.ms must not be above group.max.session.timeout.ms")
    GroupPattern(config.text_or_none("server.assigned.groups"))


def _read_toml(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        with file.open("rb") as source:
            content = tomllib.load(source)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    for name in content:
        if name != "broker":
            table = isinstance(content[name], dict)
            what = f"table [{name}]{nearest(f'[{name}]', ['[broker]'])}" if table else f"key {name!r} outside a table"
            raise ConfigError(f"{file}: unknown {what}; settings belong in [broker]")
    table = content.get("broker", {})
    if not isinstance(table, dict):
        raise ConfigError(f'{file}: [broker] must be a table of quoted keys, such as "num.partitions" = 3')
    for name, value in table.items():
        if isinstance(value, dict):
            raise ConfigError(f'{file}: quote the keys of [broker], such as "{name}.{next(iter(value), "…")}" = …')
    return table


def _read_environment(config: BrokerConfig, environment: Mapping[str, str]) -> None:
    by_variable = {environment_name(name): name for name in SETTINGS}
    for variable, value in environment.items():
        if variable in by_variable:
            config.set(by_variable[variable], value, variable)
        # Other programs of the project have variables of their own: only a likely misspelling is rejected.
        elif variable.startswith(ENVIRONMENT_PREFIX) and (slip := nearest(variable, by_variable, 0.85)):
            raise ConfigError(f"there is no setting for the variable {variable}{slip}")
