//! Registration with an iSNS server, where initiators look for targets (RFC 4171).

mod pdu;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::shared::Shared;
use pdu::{AnswerError, DEV_ATTR_REG, DEV_DEREG, RegisteredTarget, Registration};

/// Timeout of any exchange with the server. Only the registrar waits for it, and the daemon when it stops.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// Interval of checks whether the registration is still up to date.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// Registration period, after which the server drops a registration that is not renewed, and our period of renewal.
const REGISTRATION_PERIOD_S: u32 = 600;
const RENEWAL_PERIOD: Duration = Duration::from_secs(200);
/// The pause after a failure: first, and then twice the last up to the longest.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LONGEST: Duration = Duration::from_secs(60);

/// Keeps the targets and their portals registered, on a thread of its own: serving never waits for it.
///
/// Each second it compares what is served with what is registered, so that targets and addresses that come and go are
/// known soon. What fails is tried again, with longer and longer pauses, and said once. When this is dropped everything
/// is deregistered.
// RFC 7143 [4.2.7-1]
#[derive(Debug)]
pub(crate) struct IsnsRegistrar {
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl IsnsRegistrar {
    pub(crate) fn start(server: SocketAddr, shared: Arc<Shared>) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let join = thread::Builder::new().name("lunway-isns".to_owned()).spawn(move || {
            let mut client = IsnsClient { server, transaction: 0, registered: None, pause: None };
            let mut wait = Duration::ZERO;
            while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                client.look(served(&shared));
                wait = client.pause.unwrap_or(LOOK_PERIOD);
            }
            client.leave();
        })?;
        Ok(Self { thread: Some((stop, join)) })
    }
}

impl Drop for IsnsRegistrar {
    fn drop(&mut self) {
        if let Some((stop, join)) = self.thread.take() {
            drop(stop);
            let _ = join.join();
        }
    }
}

/// Returns the registration; `None` where there is nothing that anybody could log in to.
fn served(shared: &Shared) -> Option<Registration> {
    let (serving, portals) = (shared.serving(), shared.portals.now());
    let mut all = Vec::new();
    let mut targets = Vec::new();
    for target in serving.targets.values().filter(|target| target.config.enabled) {
        let portals: Vec<_> = portals.lasting(|group| target.is_offered_by(group));
        all.extend(portals.iter().map(|(address, _)| *address));
        let (name, alias) = (target.config.name.to_string(), target.config.alias.clone());
        targets.push(RegisteredTarget { name, alias, portals });
    }
    all.sort_unstable();
    all.dedup();
    // Names of targets are unique in the world, so that the first names the entity as well.
    let entity = targets.first()?.name.clone();
    (!all.is_empty()).then_some(Registration { entity, portals: all, targets })
}

/// State of the exchange with the server.
struct IsnsClient {
    server: SocketAddr,
    transaction: u16,
    registered: Option<(Registration, Instant)>,
    /// The last attempt failed; how long until the next.
    pause: Option<Duration>,
}

impl IsnsClient {
    /// Sees to it that `served` is what is registered.
    fn look(&mut self, served: Option<Registration>) {
        let is_current = match (&self.registered, &served) {
            (Some((known, since)), Some(served)) => known == served && since.elapsed() < RENEWAL_PERIOD,
            (None, None) => true,
            _ => false,
        };
        if is_current {
            return;
        }
        let moved = |known: &Registration| served.as_ref().is_none_or(|served| served.entity != known.entity);
        let result = match self.registered.take_if(|(known, _)| moved(known)) {
            Some((old, _)) => self.converse(DEV_DEREG, |transaction| old.deregister(transaction)),
            None => Ok(()),
        };
        let result = result.and_then(|()| match served {
            Some(served) => {
                self.converse(DEV_ATTR_REG, |transaction| {
                    served.register(transaction, REGISTRATION_PERIOD_S)
                })?;
                self.registered = Some((served, Instant::now()));
                Ok(())
            }
            None => Ok(()),
        });
        self.note(result);
    }

    fn note(&mut self, result: Result<(), AnswerError>) {
        match (result, self.pause) {
            (Ok(()), Some(_)) => {
                tracing::info!(server = %self.server, "registered with the iSNS server again");
                self.pause = None;
            }
            (Ok(()), None) => tracing::debug!(server = %self.server, "registered with the iSNS server"),
            (Err(error), pause) => {
                if pause.is_none() {
                    tracing::warn!(server = %self.server, "cannot register with the iSNS server: {error}; trying again");
                }
                self.pause = Some(pause.map_or(RETRY_FIRST, |pause| (pause * 2).min(RETRY_LONGEST)));
            }
        }
    }

    /// Deregisters, if the server can be reached.
    fn leave(&mut self) {
        if let Some((registered, _)) = self.registered.take()
            && let Err(error) = self.converse(DEV_DEREG, |transaction| registered.deregister(transaction))
        {
            tracing::warn!(server = %self.server, "cannot deregister from the iSNS server: {error}");
        }
    }

    /// Exchanges one message and its answer, on a connection of their own: they are minutes apart.
    fn converse(&mut self, function: u16, message: impl FnOnce(u16) -> Vec<u8>) -> Result<(), AnswerError> {
        self.transaction = self.transaction.wrapping_add(1);
        let mut stream = TcpStream::connect_timeout(&self.server, ANSWER_TIME)?;
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        stream.set_write_timeout(Some(ANSWER_TIME))?;
        stream.write_all(&message(self.transaction))?;
        pdu::answer(&mut stream, function, self.transaction)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    fn registration(portal: &str) -> Registration {
        let portal = portal.parse().unwrap();
        let name = "iqn.2026-11.com.example:disks".to_owned();
        let target = RegisteredTarget { name: name.clone(), alias: None, portals: vec![(portal, 1)] };
        Registration { entity: name, portals: vec![portal], targets: vec![target] }
    }

    /// Takes as many messages as there are statuses, answers each with one, and returns their functions.
    fn script(listener: TcpListener, statuses: &'static [u32]) -> JoinHandle<Vec<u16>> {
        thread::spawn(move || {
            let answer = |status: &u32| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut header = [0; 12];
                stream.read_exact(&mut header).unwrap();
                let mut payload = vec![0; usize::from(u16::from_be_bytes([header[4], header[5]]))];
                stream.read_exact(&mut payload).unwrap();
                let function = u16::from_be_bytes([header[2], header[3]]);
                header[2] |= 0x80;
                header[4..6].copy_from_slice(&4u16.to_be_bytes());
                header[6..8].copy_from_slice(&0x4c00u16.to_be_bytes());
                stream.write_all(&header).unwrap();
                stream.write_all(&status.to_be_bytes()).unwrap();
                function
            };
            statuses.iter().map(answer).collect()
        })
    }

    #[test]
    fn what_changes_is_registered_anew_what_does_not_is_left_alone_and_the_end_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let script = script(listener, &[0, 0, 0]);
        let mut client = IsnsClient { server, transaction: 0, registered: None, pause: None };
        client.look(None);
        client.look(Some(registration("10.0.0.1:3260")));
        client.look(Some(registration("10.0.0.1:3260")));
        client.look(Some(registration("10.0.0.2:3260")));
        client.leave();
        assert_eq!(script.join().unwrap(), [DEV_ATTR_REG, DEV_ATTR_REG, DEV_DEREG]);
    }

    #[test]
    fn a_server_that_refuses_or_is_not_there_is_asked_again_after_longer_and_longer_pauses() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let mut client = IsnsClient { server, transaction: 0, registered: None, pause: None };
        let script = script(listener, &[6, 0]);
        client.look(Some(registration("10.0.0.1:3260")));
        assert_eq!(client.pause, Some(RETRY_FIRST));
        client.look(Some(registration("10.0.0.1:3260")));
        assert_eq!(client.pause, None);
        script.join().unwrap();
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            client.look(Some(registration("10.0.0.3:3260")));
            assert_eq!(client.pause, Some(Duration::from_secs(pause)));
        }
    }
}
