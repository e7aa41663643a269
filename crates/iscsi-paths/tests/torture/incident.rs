//! What happens to cables, target and client.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::line::Line;
use crate::random::Random;
use crate::target::Target;

/// Something that happens, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Incident {
    /// Connections are reset.
    Cut,
    /// They are reset again and again.
    Flap { times: u64, pause: Duration },
    /// Reset, and no new ones for a while.
    Refuse(Duration),
    /// The target hears of the end, the initiator does not.
    HalfOpen,
    /// Packets vanish without a sign.
    BlackHole(Duration),
    /// Bytes vanish that were acknowledged.
    Eat(Duration),
    /// Nothing moves, and then it does.
    Freeze(Duration),
    /// Everything takes longer.
    Delay(Duration, Duration),
    /// Reset, and what was sent shortly before reaches the target afterwards.
    Late { hold: Duration, late: Duration },
    /// All cables are cut at once.
    CutAll,
    /// The target is killed, and started again.
    Restart { pause: Duration },
    /// The target stands still, and goes on.
    Stop(Duration),
    /// The client is killed, and another one is started.
    Kill { pause: Duration },
    /// The same while packets of one cable vanish, with writes in them, until the next client has been at work for a
    /// while.
    KillInBlackHole { stuck: Duration, pause: Duration, work: Duration },
    /// The same as the cables' `Late`, in mid-`Kill`.
    KillLate { hold: Duration, late: Duration },
    /// Another disk is put under the number, and taken away again.
    Exchange(Duration),
    /// Another node takes the key of the client away, and then the cables are cut.
    Preempt { work: Duration, watch: Duration },
    /// Somebody changes the policy.
    Policy(usize),
    /// The portal group is taken out of service, and comes back.
    OutOfService(Duration),
}

impl Incident {
    /// What can happen to any target, in the measure of [`Self::random`].
    pub(crate) const ANYWHERE: u64 = 60;
    /// With what can happen to one with portal groups.
    pub(crate) const ALL: u64 = 64;

    /// One of the first so many in the order below, by chance.
    pub(crate) fn random(random: &mut Random, kinds: u64) -> Self {
        match random.below(kinds) {
            0..3 => Self::Cut,
            3..8 => Self::Late { hold: random.millis(5..60), late: random.millis(20..800) },
            8..12 => Self::Flap { times: 2 + random.below(4), pause: random.millis(20..150) },
            12..16 => Self::Refuse(random.millis(50..1000)),
            16..19 => Self::HalfOpen,
            19..25 => Self::BlackHole(random.millis(100..2000)),
            25..28 => Self::Eat(random.millis(50..1500)),
            28..31 => Self::Freeze(random.millis(50..1500)),
            31..34 => Self::Delay(random.millis(1..30), random.millis(100..800)),
            34 => Self::CutAll,
            35..38 => Self::Restart { pause: random.millis(0..400) },
            38..40 => Self::Policy(random.below(100) as usize),
            40..43 => Self::Stop(random.millis(500..3000)),
            43..47 => Self::Kill { pause: random.millis(0..300) },
            47..51 => Self::KillInBlackHole {
                stuck: random.millis(20..150),
                pause: random.millis(0..200),
                work: random.millis(200..1500),
            },
            51..54 => Self::KillLate { hold: random.millis(5..60), late: random.millis(100..1500) },
            54..57 => Self::Exchange(random.millis(200..1200)),
            57..Self::ANYWHERE => {
                Self::Preempt { work: random.millis(100..500), watch: random.millis(200..1500) }
            }
            _ => Self::OutOfService(random.millis(50..2000)),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Cut => "cut",
            Self::Flap { .. } => "flap",
            Self::Refuse(_) => "refuse",
            Self::HalfOpen => "half-open",
            Self::BlackHole(_) => "black hole",
            Self::Eat(_) => "eat",
            Self::Freeze(_) => "freeze",
            Self::Delay(..) => "delay",
            Self::Late { .. } => "late",
            Self::CutAll => "cut all",
            Self::Restart { .. } => "restart",
            Self::Policy(_) => "policy",
            Self::Stop(_) => "stop",
            Self::Kill { .. } => "kill",
            Self::KillInBlackHole { .. } => "kill, black hole",
            Self::KillLate { .. } => "kill, late",
            Self::Exchange(_) => "exchange",
            Self::Preempt { .. } => "preempt",
            Self::OutOfService(_) => "out of service",
        }
    }
}

/// The cables, and what is going on with each.
pub(crate) struct Cables {
    lines: Vec<Arc<Line>>,
    /// Of each line, whether something lasts.
    busy: Vec<Arc<()>>,
    going_on: JoinSet<()>,
}

impl Cables {
    pub(crate) fn new(lines: Vec<Line>) -> Self {
        let busy = lines.iter().map(|_| Arc::new(())).collect();
        Self { lines: lines.into_iter().map(Arc::new).collect(), busy, going_on: JoinSet::new() }
    }

    /// The target is elsewhere.
    pub(crate) fn redirect(&self, target: &Target) {
        self.lines.iter().enumerate().for_each(|(lane, line)| line.redirect(target.portal(lane)));
    }

    /// Lets it happen to a cable that is well; one always stays so.
    pub(crate) fn meet(&mut self, incident: Incident, random: &mut Random) {
        if matches!(incident, Incident::CutAll) {
            return self.lines.iter().for_each(|line| line.cut());
        }
        let Some((line, busy)) = self.take(random) else { return };
        self.going_on.spawn(async move {
            happen(incident, &line).await;
            drop(busy);
        });
    }

    /// A cable that is well, if one more is; it counts as busy until the second part is dropped.
    pub(crate) fn take(&self, random: &mut Random) -> Option<(Arc<Line>, Arc<()>)> {
        let well: Vec<_> =
            (0..self.lines.len()).filter(|line| Arc::strong_count(&self.busy[*line]) == 1).collect();
        let chosen = *well.get(random.below(well.len().max(1) as u64) as usize).filter(|_| well.len() > 1)?;
        Some((self.lines[chosen].clone(), self.busy[chosen].clone()))
    }

    /// Waits for the end of what is going on.
    pub(crate) async fn heal(&mut self) {
        while let Some(ended) = self.going_on.join_next().await {
            ended.unwrap();
        }
    }
}

async fn happen(incident: Incident, line: &Line) {
    let sleep = tokio::time::sleep;
    match incident {
        Incident::Cut => line.cut(),
        Incident::Flap { times, pause } => {
            for _ in 0..times {
                line.cut();
                sleep(pause).await;
            }
        }
        Incident::Refuse(time) => {
            line.refuse(true);
            line.cut();
            sleep(time).await;
            line.refuse(false);
        }
        Incident::HalfOpen => line.cut_far_end(),
        Incident::BlackHole(time) => {
            line.swallow(true);
            sleep(time).await;
            line.swallow(false);
        }
        Incident::Eat(time) => {
            line.eat(true);
            sleep(time).await;
            line.eat(false);
        }
        Incident::Freeze(time) => {
            line.freeze(true);
            sleep(time).await;
            line.freeze(false);
        }
        Incident::Delay(by, time) => {
            line.delay(by);
            sleep(time).await;
            line.delay(Duration::ZERO);
        }
        Incident::Late { hold, late } => {
            // Its own way back would end the session before anything can come late.
            line.refuse(true);
            line.cut_and_deliver_late(hold, late).await;
            sleep(late).await;
            line.refuse(false);
        }
        // What happens to others than cables.
        _ => {}
    }
}
