//! What happens to cables and target.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::line::Line;
use crate::random::Random;

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
    /// Somebody changes the policy.
    Policy(usize),
}

impl Incident {
    pub(crate) fn random(random: &mut Random) -> Self {
        match random.below(40) {
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
            _ => Self::Policy(random.below(100) as usize),
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
        }
    }
}

/// The cables, and what is going on with each.
pub(crate) struct Ground {
    lines: Vec<Arc<Line>>,
    /// Of each line, whether something lasts.
    busy: Vec<Arc<()>>,
    going_on: JoinSet<()>,
}

impl Ground {
    pub(crate) fn new(lines: Vec<Line>) -> Self {
        let busy = lines.iter().map(|_| Arc::new(())).collect();
        Self { lines: lines.into_iter().map(Arc::new).collect(), busy, going_on: JoinSet::new() }
    }

    /// The target is elsewhere.
    pub(crate) fn redirect(&self, target: SocketAddr) {
        self.lines.iter().for_each(|line| line.redirect(target));
    }

    /// Lets it happen to a cable that is well; one always stays so.
    pub(crate) fn befall(&mut self, incident: Incident, random: &mut Random) {
        if matches!(incident, Incident::CutAll) {
            return self.lines.iter().for_each(|line| line.cut());
        }
        let well: Vec<_> =
            (0..self.lines.len()).filter(|line| Arc::strong_count(&self.busy[*line]) == 1).collect();
        if well.len() < 2 {
            return;
        }
        let chosen = well[random.below(well.len() as u64) as usize];
        let (line, busy) = (self.lines[chosen].clone(), self.busy[chosen].clone());
        self.going_on.spawn(async move {
            happen(incident, &line).await;
            drop(busy);
        });
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
        Incident::CutAll | Incident::Restart { .. } | Incident::Policy(_) => {}
    }
}
