//! A lane to the storage that breaks in every way a session can.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lunway_block::{
    BlockDevice, BlockError, Buf, Durability, Fate, Geometry, Io, ResizeCallback, SharedBuf, Zeroing,
};
use lunway_multipath::{AluaState, Lane, LaneEvent, LaneListener};
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

use crate::random::Random;
use crate::storage::{Effect, SECTOR, SECTORS, Value};
use crate::world::{SLOW, Task, World};

/// A lane to the storage that breaks in every way a session can.
///
/// A command reaches the storage after a while and is answered after another while. When the session is lost, commands
/// without an answer may have been carried out, may never be, or **may be later**, whole or in part, at any time until
/// the session is settled. In a world where nothing proves sessions dead they are received by a certain time after the
/// loss, and carried out whenever the storage likes.
pub(crate) struct SimLane {
    world: Arc<World>,
    session: Mutex<SimSession>,
    joins_after: Option<Duration>,
    joins: Notify,
    hurried: Notify,
}

struct SimSession {
    random: Random,
    listener: Option<Arc<dyn LaneListener>>,
    epoch: u64,
    up: bool,
    /// Nothing goes over it any more, and nobody has noticed yet.
    dead: bool,
    settled: u64,
    access: AluaState,
    commands: BTreeMap<u64, Command>,
    next: u64,
    /// How often the storage had been restarted when the session began.
    restarts: u64,
}

struct Command {
    effect: Effect,
    /// The restarts of the storage when it was sent: it does not live through another.
    restarts: u64,
    /// It left before the session was dead.
    sent: bool,
    /// Since the storage has received it.
    task: Option<Task>,
    /// What it found, once it was carried out.
    found: Option<Vec<Value>>,
    answer: Option<oneshot::Sender<Result<Vec<Value>, BlockError>>>,
}

impl SimLane {
    /// One that is up, or one whose first session begins that much later.
    pub(crate) fn new(world: Arc<World>, random: Random, joins_after: Option<Duration>) -> Arc<Self> {
        let session = SimSession {
            random,
            listener: None,
            epoch: u64::from(joins_after.is_none()),
            up: joins_after.is_none(),
            dead: false,
            settled: 0,
            access: AluaState::Optimized,
            commands: BTreeMap::new(),
            next: 0,
            restarts: 0,
        };
        Arc::new(Self {
            world,
            session: Mutex::new(session),
            joins_after,
            joins: Notify::new(),
            hurried: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, SimSession> {
        self.session.lock().unwrap()
    }

    fn tell(&self, event: LaneEvent) {
        if event == LaneEvent::PowerOn {
            self.world.oracle().power_on();
        }
        let listener = self.lock().listener.clone();
        listener.unwrap().happened(event);
    }

    pub(crate) fn is_up(&self) -> bool {
        let session = self.lock();
        session.up && !session.dead
    }

    /// Nothing goes over it any more; nobody notices.
    pub(crate) fn die(&self) {
        self.lock().dead = true;
    }

    /// Its first session begins now, if there was none: before the others are noticed to be dead, or after.
    pub(crate) fn join_now(&self) {
        if self.lock().epoch == 0 {
            self.joins.notify_one();
        }
    }

    pub(crate) fn set_access(&self, access: AluaState) {
        self.lock().access = access;
        self.tell(LaneEvent::Access(access));
    }

    pub(crate) fn seem_silent(&self, silent: bool) {
        self.tell(if silent { LaneEvent::Silent } else { LaneEvent::Heard });
    }

    /// The loss is noticed. The session is settled after `settle`, and another is there after `back` more.
    pub(crate) fn lose(self: &Arc<Self>, settle: Duration, back: Duration) {
        let epoch = {
            let mut session = self.lock();
            if !session.up {
                return;
            }
            session.up = false;
            session.epoch
        };
        self.tell(LaneEvent::Lost { epoch, why: "the simulation cut it".to_owned() });
        let commands = std::mem::take(&mut self.lock().commands);
        for command in commands.into_values() {
            self.lose_command(epoch, command, settle);
        }
        self.world.stirred.notify_waiters();
        tokio::spawn(self.clone().come_back(epoch, settle, back));
    }

    fn lose_command(self: &Arc<Self>, epoch: u64, mut command: Command, settle: Duration) {
        let (late, unsent) = {
            let random = &mut self.lock().random;
            (command.sent && random.percent(60), random.percent(20))
        };
        let carried_out = command.found.is_some();
        let answer = command.answer.take();
        let error = match late || carried_out || !unsent {
            true => BlockError::lost(),
            false => BlockError::gone("it was not sent"),
        };
        if late && !carried_out {
            tokio::spawn(self.clone().come_late(epoch, command, settle));
        }
        if let Some(answer) = answer {
            let _ = answer.send(Err(error));
        }
    }

    /// Carries a command of a lost session out after all.
    async fn come_late(self: Arc<Self>, epoch: u64, mut command: Command, settle: Duration) {
        let unproven = self.world.config.unproven;
        let (on_the_way, first, second, in_part) = {
            let random = &mut self.lock().random;
            let on_the_way =
                unproven.map_or(Duration::ZERO, |late| random.micros(late.most.as_micros() as u64));
            let rest = unproven.map_or(settle, |_| SLOW).as_micros() as u64;
            (on_the_way, random.micros(rest), random.micros(rest), random.percent(30))
        };
        if command.task.is_none() {
            sleep(on_the_way).await;
            if !self.may_come(epoch, &command) {
                return;
            }
            command.task = Some(self.world.receive());
        }
        sleep(first).await;
        if in_part && self.may_come(epoch, &command) {
            let mut random = self.lock().random.fork();
            self.world.storage().execute_in_part(&command.effect, &mut random);
            sleep(second).await;
        }
        if self.may_come(epoch, &command) {
            self.world.storage().execute(&command.effect);
            self.world.late.set(self.world.late.get() + 1);
        }
    }

    fn may_come(&self, epoch: u64, command: &Command) -> bool {
        self.lock().settled < epoch && self.world.storage().restarts == command.restarts
    }

    async fn come_back(self: Arc<Self>, epoch: u64, settle: Duration, back: Duration) {
        let _ = timeout(settle, self.hurried.notified()).await;
        self.lock().settled = epoch;
        self.tell(LaneEvent::Settled { epoch });
        sleep(back).await;
        self.begin(epoch + 1);
    }

    /// A session begins. Each nexus is told at its beginning that the power was off.
    fn begin(&self, epoch: u64) {
        let restarts = self.world.storage().restarts;
        let power_on = {
            let mut session = self.lock();
            (session.up, session.dead, session.epoch) = (true, false, epoch);
            let before = std::mem::replace(&mut session.restarts, restarts);
            epoch == 1 || before != restarts || self.world.config.power_on_always
        };
        if power_on && !self.world.config.power_on_never {
            self.tell(LaneEvent::PowerOn);
        }
        self.tell(LaneEvent::Up { epoch });
    }

    /// Starts a command.
    fn submit(&self, effect: Effect) -> Io<Result<Vec<Value>, BlockError>> {
        let mut session = self.lock();
        let gone = |why: &str| Io::err(BlockError::gone(why));
        if !session.up {
            return gone("no session");
        }
        if !session.access.is_active() {
            return gone("access is not active");
        }
        let restarts = self.world.storage().restarts;
        if session.dead || restarts != session.restarts {
            session.dead = true;
        } else if session.random.percent(5) {
            return Io::ok(self.world.storage().execute(&effect));
        } else if session.random.percent(1) {
            return match session.next % 2 {
                0 => Io::err(BlockError::Busy),
                _ => gone("refused, for whatever reason"),
            };
        }
        let (reply, answer) = oneshot::channel();
        let number = session.next;
        session.next += 1;
        let sent = !session.dead;
        let answer_to = Some(reply);
        session
            .commands
            .insert(number, Command { effect, restarts, sent, task: None, found: None, answer: answer_to });
        let slow = session.random.percent(3);
        let times = [(); 2].map(|()| session.random.micros(if slow { 20_000 } else { 1500 }));
        let mishap = session.random.below(400);
        let epoch = session.epoch;
        drop(session);
        tokio::spawn(self.this().carry_out(epoch, number, times, mishap));
        Io::pending(async move { answer.await.unwrap_or(Err(BlockError::lost())) })
    }

    /// Waits until all has ended that the storage had received when this came there; or for the end of the lane.
    async fn outwait(self: Arc<Self>, epoch: u64, times: [Duration; 2]) -> Result<(), BlockError> {
        sleep(times[0]).await;
        let arrives = self.is_up();
        let mut older = self.world.tasks();
        if self.world.config.barriers_leak {
            older.clear();
        }
        loop {
            let mut stirred = pin!(self.world.stirred.notified());
            stirred.as_mut().enable();
            {
                let session = self.lock();
                if session.epoch != epoch || !session.up {
                    return Err(BlockError::lost());
                }
            }
            if arrives && self.is_up() && self.world.tasks().is_disjoint(&older) {
                break;
            }
            stirred.await;
        }
        sleep(times[1]).await;
        let session = self.lock();
        if session.epoch != epoch || !session.up || session.dead {
            return Err(BlockError::lost());
        }
        self.world.barriers.set(self.world.barriers.get() + 1);
        Ok(())
    }

    fn this(&self) -> Arc<Self> {
        self.world.lane_of(self)
    }

    async fn carry_out(self: Arc<Self>, epoch: u64, number: u64, times: [Duration; 2], mishap: u64) {
        sleep(times[0] / 2).await;
        {
            let mut session = self.lock();
            if session.epoch != epoch || !session.up {
                return;
            }
            let dead = session.dead;
            if let Some(command) = session.commands.get_mut(&number)
                && command.sent
                && !dead
            {
                command.task = Some(self.world.receive());
            }
        }
        sleep(times[0] / 2).await;
        {
            let mut session = self.lock();
            if session.epoch != epoch || !session.up {
                return;
            }
            let dead = session.dead;
            // What had left before the session died may arrive.
            let arrives = !dead || session.random.percent(50);
            let Some(command) = session.commands.get_mut(&number) else { return };
            match mishap {
                // Its end is not known, and the session lives: it stays where it is, and may come later.
                0 => {
                    if let Some(answer) = command.answer.take() {
                        let _ = answer.send(Err(BlockError::lost()));
                    }
                    return;
                }
                // It was late, and aborted, and the abort was confirmed.
                1 => {
                    if let Some(mut command) = session.commands.remove(&number)
                        && let Some(answer) = command.answer.take()
                    {
                        let _ = answer.send(Err(BlockError::Timeout { millis: 1, fate: Fate::Over }));
                    }
                    return;
                }
                _ => {}
            }
            let mut storage = self.world.storage();
            if command.sent && arrives && storage.restarts == command.restarts {
                command.found = Some(storage.execute(&command.effect));
                drop(storage);
                command.task = None;
            }
        }
        sleep(times[1]).await;
        let mut session = self.lock();
        if session.epoch != epoch || !session.up || session.dead {
            return;
        }
        if let Some(Command { found: Some(found), answer: Some(answer), .. }) =
            session.commands.remove(&number)
        {
            let _ = answer.send(Ok(found));
        }
    }
}

impl Lane for SimLane {
    fn device(&self) -> &dyn BlockDevice {
        self
    }

    fn listen(&self, listener: Arc<dyn LaneListener>) {
        self.lock().listener = Some(listener);
        let Some(late) = self.joins_after else { return self.tell(LaneEvent::Up { epoch: 1 }) };
        let this = self.this();
        tokio::spawn(async move {
            let _ = timeout(late, this.joins.notified()).await;
            this.begin(1);
        });
    }

    fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    fn barrier(&self) -> Io<Result<(), BlockError>> {
        let (epoch, times) = {
            let mut session = self.lock();
            if !session.up || !session.access.is_active() {
                return Io::err(BlockError::gone("no session"));
            }
            (session.epoch, [(); 2].map(|()| session.random.micros(1500)))
        };
        Io::pending(self.this().outwait(epoch, times))
    }

    fn sever(&self, _: &str) {
        let this = self.this();
        let (settle, back) = {
            let random = &mut self.lock().random;
            (random.micros(50_000), random.micros(50_000))
        };
        tokio::spawn(async move { this.lose(settle, back) });
    }

    fn hurry(&self) {
        if self.world.config.hurries {
            self.hurried.notify_waiters();
        }
    }
}

impl BlockDevice for SimLane {
    fn geometry(&self) -> Geometry {
        let plain = Geometry::plain(SECTORS * SECTOR as u64).with_sector(SECTOR as u32);
        Geometry { volatile_cache: true, ..plain }
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        let first = offset / SECTOR as u64;
        let range = first..first + (buf.len() / SECTOR) as u64;
        self.submit(Effect::Read(range)).map(move |found| {
            let found = found?;
            for (sector, value) in buf.chunks_exact_mut(SECTOR).zip(found) {
                sector[..8].copy_from_slice(&value.to_le_bytes());
            }
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        let values = data.chunks_exact(SECTOR).map(value_of).collect();
        let effect = Effect::Write(offset / SECTOR as u64, values, durability == Durability::Stable);
        self.submit(effect).map(|answer| answer.map(drop))
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        self.submit(Effect::Flush).map(|answer| answer.map(drop))
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        self.write_zeroes(offset, len, Zeroing::MayUnmap)
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: Zeroing) -> Io<Result<(), BlockError>> {
        let sector = SECTOR as u64;
        let effect = Effect::Write(offset / sector, vec![0; (len / sector) as usize], false);
        self.submit(effect).map(|answer| answer.map(drop))
    }

    fn on_resize(&self, callback: ResizeCallback) {
        drop(callback);
    }
}

/// What a sector holds.
pub(crate) fn value_of(sector: &[u8]) -> Value {
    u64::from_le_bytes(sector[..8].try_into().unwrap())
}

/// A lane that says that its session is settled as soon as it is lost: what the test must find out.
pub(crate) struct SettlesTooEarly(pub(crate) Arc<SimLane>);

struct TooEarly(Arc<dyn LaneListener>);

impl LaneListener for TooEarly {
    fn happened(&self, event: LaneEvent) {
        let epoch = match &event {
            LaneEvent::Lost { epoch, .. } => Some(*epoch),
            _ => None,
        };
        self.0.happened(event);
        if let Some(epoch) = epoch {
            self.0.happened(LaneEvent::Settled { epoch });
        }
    }
}

impl Lane for SettlesTooEarly {
    fn device(&self) -> &dyn BlockDevice {
        self.0.device()
    }

    fn listen(&self, listener: Arc<dyn LaneListener>) {
        self.0.listen(Arc::new(TooEarly(listener)));
    }

    fn epoch(&self) -> u64 {
        self.0.epoch()
    }

    fn barrier(&self) -> Io<Result<(), BlockError>> {
        self.0.barrier()
    }

    fn sever(&self, why: &str) {
        self.0.sever(why);
    }

    fn hurry(&self) {
        self.0.hurry();
    }
}
