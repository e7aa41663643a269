//! A lane that does what the test says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use lunway_block::{
    BlockDevice, BlockError, Buf, Durability, Geometry, Io, ResizeCallback, SharedBuf, Zeroing,
};
use lunway_multipath::{Lane, LaneEvent, LaneListener};
use tokio::sync::oneshot;

/// What was asked of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Read(u64, usize),
    Write(u64, usize, Durability),
    Zero(u64, u64),
    Flush,
    Barrier,
}

/// An operation that waits for the test to answer it.
pub(crate) struct Waiting {
    pub(crate) asked: Asked,
    answer: oneshot::Sender<Result<(), BlockError>>,
}

impl Waiting {
    pub(crate) fn answer(self, answer: Result<(), BlockError>) {
        let _ = self.answer.send(answer);
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    listener: Option<Arc<dyn LaneListener>>,
    callbacks: Vec<ResizeCallback>,
    /// Every operation is answered at once with this.
    ready: Option<Result<(), BlockError>>,
    asked: u64,
    severed: u64,
    hurried: u64,
}

/// A lane that does what the test says. Reads find its number in every byte.
pub(crate) struct ManualLane {
    number: u8,
    geometry: Mutex<Geometry>,
    state: Mutex<State>,
}

impl ManualLane {
    pub(crate) fn new(number: u8, geometry: Geometry) -> Arc<Self> {
        Arc::new(Self { number, geometry: Mutex::new(geometry), state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn tell(&self, event: LaneEvent) {
        let listener = self.lock().listener.clone();
        listener.unwrap().happened(event);
    }

    pub(crate) fn up(&self, epoch: u64) {
        self.tell(LaneEvent::Up { epoch });
    }

    pub(crate) fn settle(&self, epoch: u64) {
        self.tell(LaneEvent::Settled { epoch });
    }

    /// Loses the session with everything in it.
    pub(crate) fn lose(&self, epoch: u64) {
        self.tell(LaneEvent::Lost { epoch, why: "the cable was pulled".to_owned() });
        let waiting = std::mem::take(&mut self.lock().waiting);
        waiting.into_iter().for_each(|waiting| waiting.answer(Err(BlockError::lost())));
    }

    /// The operation that has waited longest.
    pub(crate) fn take(&self) -> Option<Waiting> {
        self.lock().waiting.pop_front()
    }

    pub(crate) fn answer_at_once(&self, answer: Option<Result<(), BlockError>>) {
        self.lock().ready = answer;
    }

    /// Operations so far.
    pub(crate) fn asked(&self) -> u64 {
        self.lock().asked
    }

    pub(crate) fn severed(&self) -> u64 {
        self.lock().severed
    }

    pub(crate) fn hurried(&self) -> u64 {
        self.lock().hurried
    }

    /// It notices that the disk has another size.
    pub(crate) fn notice(&self, geometry: Geometry) {
        *self.geometry.lock().unwrap() = geometry;
        let callbacks = std::mem::take(&mut self.lock().callbacks);
        callbacks.iter().for_each(|callback| callback(geometry));
        self.lock().callbacks = callbacks;
    }

    fn ask(&self, asked: Asked) -> Io<Result<(), BlockError>> {
        let mut state = self.lock();
        state.asked += 1;
        if let Some(answer) = &state.ready {
            return Io::Ready(answer.clone());
        }
        let (answer, heard) = oneshot::channel();
        state.waiting.push_back(Waiting { asked, answer });
        Io::pending(async move { heard.await.unwrap() })
    }
}

impl Lane for ManualLane {
    fn device(&self) -> &dyn BlockDevice {
        self
    }

    fn listen(&self, listener: Arc<dyn LaneListener>) {
        self.lock().listener = Some(listener);
    }

    fn epoch(&self) -> u64 {
        0
    }

    fn barrier(&self) -> Io<Result<(), BlockError>> {
        self.ask(Asked::Barrier)
    }

    fn sever(&self, _: &str) {
        self.lock().severed += 1;
    }

    fn hurry(&self) {
        self.lock().hurried += 1;
    }
}

impl BlockDevice for ManualLane {
    fn geometry(&self) -> Geometry {
        *self.geometry.lock().unwrap()
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        buf.fill(self.number);
        self.ask(Asked::Read(offset, buf.len())).map(|answer| answer.map(|()| buf))
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        self.ask(Asked::Write(offset, data.len(), durability))
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        self.ask(Asked::Flush)
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: Zeroing) -> Io<Result<(), BlockError>> {
        self.ask(Asked::Zero(offset, len))
    }

    fn on_resize(&self, callback: ResizeCallback) {
        self.lock().callbacks.push(callback);
    }
}
