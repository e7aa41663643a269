//! Wait of a connection: for its socket, its work, orders and the timer.

use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;

use lunway_iscsi::target::TargetEvent;

use super::Connection;
use super::end::End;

/// Reads in vain between two questions about all sockets of a core: at 0.3 µs each they take as long as one such
/// question, with what the runtime does beside it, and find what comes in a third of the time.
const LOOKS: usize = 8;

impl Connection {
    /// Waits until there is something to do: polling for a while if the last waits were short, see
    /// [`Polling`](crate::polling::Polling).
    pub(super) async fn wait(&mut self) -> Result<(), End> {
        self.arm();
        if !self.polling.is_on() {
            poll_fn(|cx| self.poll_ready(cx)).await;
            return Ok(());
        }
        let start = Instant::now();
        if let Some(budget) = self.polling.budget() {
            loop {
                for _ in 0..self.looks() {
                    let got = self.socket.look(&mut self.core.receive_space()).map_err(End::Broken)?;
                    if self.received(got)? {
                        self.polling.waited(start.elapsed());
                        return Ok(());
                    }
                }
                // Asks the kernel for news of all sockets of this core, and lets its other tasks run.
                tokio::task::yield_now().await;
                if self.glance().await {
                    self.polling.waited(start.elapsed());
                    return Ok(());
                }
                if start.elapsed() >= budget {
                    break;
                }
            }
        }
        poll_fn(|cx| self.poll_ready(cx)).await;
        self.polling.waited(start.elapsed());
        Ok(())
    }

    /// Reads that look for something, between two questions to the kernel about all sockets of the core: the more
    /// connections the core has, the fewer.
    fn looks(&self) -> usize {
        match self.reads() && !self.core.holds_back() {
            true => (LOOKS / self.on_core.load(Ordering::Relaxed).max(1)).max(1),
            false => 0,
        }
    }

    /// Takes what is there, without waiting. Says whether there was anything.
    pub(super) async fn glance(&mut self) -> bool {
        poll_fn(|cx| Poll::Ready(self.poll_ready(cx).is_ready())).await
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut news = self.poll_work(cx).is_ready();
        while let Poll::Ready(Some(order)) = self.ticket.orders.poll_recv(cx) {
            self.order(order);
            news = true;
        }
        // While it is not read the socket is not asked, else its readiness would wake us in a loop.
        news |= self.reads() && (self.socket.poll_readable(cx) || self.core.holds_back());
        if self.core.lacks_memory() && self.core.poll_memory(cx).is_ready() {
            self.executing.memory_freed();
            self.eventful = true;
            news = true;
        }
        if self.core.unsent() > 0 && !self.takeover.is_mute() {
            news |= self.socket.poll_writable(cx);
        }
        if self.timer.poll_due(cx) {
            self.handle_timeout(Instant::now());
            news = true;
        }
        if news { Poll::Ready(()) } else { Poll::Pending }
    }

    pub(super) fn poll_work(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut news = Poll::Pending;
        let _entered = if self.executing.is_empty() { None } else { self.enter() };
        while !self.executing.is_empty()
            && !self.turn.is_over()
            && let Poll::Ready(Some(done)) = self.executing.poll_next(cx)
        {
            self.done(done);
            news = Poll::Ready(());
        }
        news
    }

    /// Lets the core do what is due. While the session waits for the end of another it is not read, so that an answer
    /// to a ping would not be seen: then the peer is not blamed for its silence. It is while it does not take its
    /// answers.
    fn handle_timeout(&mut self, now: Instant) {
        if self.takeover.is_mute() {
            return self.timer.postpone(now);
        }
        if self.core.next_timeout().is_none_or(|at| at > now) {
            return;
        }
        self.core.handle_timeout(now);
        self.eventful = true;
        if self.core.logged_in().is_none() {
            // It is over. Commands before that which were held back are not begun any more.
            while let Some(event) = self.core.poll_event() {
                if let TargetEvent::Closing(reason) = event {
                    self.end(End::Protocol(reason));
                }
            }
        }
    }

    fn arm(&mut self) {
        match &self.ending {
            Some((_, by)) => self.timer.arm(*by),
            None => self.timer.arm_for_core(self.core.next_timeout()),
        }
    }
}
