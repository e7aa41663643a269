//! Notifications to systemd (`sd_notify(3)`), where it started the daemon.

use sd_notify::NotifyState;

/// The daemon serves: units that were waiting for it may start. `status` is what `systemctl status` shows.
pub(crate) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The daemon goes on; `status` is what `systemctl status` shows from now on.
pub(crate) fn status(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// The configuration is read again; [`ready`] says that this is over.
pub(crate) fn reloading() {
    tell(&[NotifyState::Reloading]);
}

/// The daemon ends, and may take as long as its clients and devices.
pub(crate) fn stopping(status: &str) {
    tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Returns `true` if there is a supervisor that wants to be notified.
pub(crate) fn is_there() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

fn tell(states: &[NotifyState<'_>]) {
    // Without a supervisor this does nothing; one that cannot be reached must not keep the daemon from serving.
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot tell systemd: {error}");
    }
}
