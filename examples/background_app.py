"""An app that trains in the background and recommends meanwhile.

    python examples/background_app.py URL INVITATION ITEMS

ITEMS is a file with the user's item numbers, one a line. The invitation is needed the first time only: identity and
model are kept in the directory `app-data`. Ctrl-C stops the training within seconds; the next start continues it.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from client_sdk import CertificateSource, Client, ModelUnavailable, Policy, Recommendations


class App:
    """A user's device: `start` trains in a thread, `recommend` answers at any time, `stop` ends the training.

    certificate: of the organiser, as `Client.join` takes it. policy: what this device agrees to.
    """

    def __init__(
        self,
        url: str,
        invitation: str,
        items: list[int],
        folder: Path,
        certificate: CertificateSource | None = None,
        policy: Policy | None = None,
    ) -> None:
        self._items = items
        self._client = Client(url, home=folder, policy=policy)
        self._task = self._client.join(invitation=invitation, certificate=certificate)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._train)
        self.error: Exception | None = None

    def start(self) -> None:
        """Train in a thread until the task ends. A server that is away for a while is waited for."""
        self._thread.start()

    def _train(self) -> None:
        try:
            self._task.take_part(self._items, progress=print, stop=self._stopping.is_set, poll_seconds=5)
        except Exception as error:  # an app shows it; see docs/sdk.md for the kinds
            self.error = error

    def recommend(self, count: int) -> Recommendations | None:
        """Return the best items that the user does not have; None before the first round."""
        try:
            return self._task.recommend(count, self._items)
        except ModelUnavailable:
            return None

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until training ends; return whether it has."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End the training and close the connection."""
        self._stopping.set()
        self._thread.join()
        self._client.close()


def main(url: str, invitation: str, path: str) -> None:
    """Train until the task ends, and print recommendations every minute."""
    items = [int(line) for line in Path(path).read_text(encoding="utf-8").split()]
    app = App(url, invitation, items, Path("app-data"), policy=Policy(trust_roster=True))  # a trial: no organiser
    app.start()
    try:
        while not app.wait(60):
            print(app.recommend(5) or "no model yet")
    except KeyboardInterrupt:
        print("stopping")
    finally:
        app.stop()
    if app.error is not None:
        sys.exit(f"training ended: {app.error}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
