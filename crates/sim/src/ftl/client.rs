//! Clients of a raw-flash drive, and what each of their requests means to the model.

use std::cell::RefCell;
use std::rc::Rc;

use pumice_base::rng::Rng;
use pumice_reactor::spawn;
use pumice_segment::ftl::{Client, Place, RawError, RawFlash};

use super::model::{IDS, Model, bad_blocks, contents, id_of, read};
use super::{CLIENTS, is_over};

/// What went wrong, or the device's error.
type Done = Result<Result<(), String>, RawError>;

struct Caller {
    raw: RawFlash,
    client: Client,
    model: Rc<RefCell<Model>>,
    rng: Rng,
    number: u64,
}

/// Runs all clients to their end.
pub(super) async fn run_all(raw: &RawFlash, model: &Rc<RefCell<Model>>, calls: u64, rng: &Rng) -> Done {
    let callers = (0..CLIENTS).map(|number| {
        let caller = Caller {
            raw: raw.clone(),
            client: raw.client(),
            model: Rc::clone(model),
            rng: rng.split(&format!("client {number}")),
            number,
        };
        spawn(caller.run(calls))
    });
    let callers: Vec<_> = callers.collect();
    let mut first = Ok(Ok(()));
    for caller in callers {
        let Ok(ran) = caller.await else { continue };
        // What is wrong goes before the power that went.
        if !matches!(first, Ok(Err(_))) && !matches!(ran, Ok(Ok(()))) {
            first = ran;
        }
    }
    first
}

impl Caller {
    async fn run(mut self, calls: u64) -> Done {
        for _ in 0..calls {
            let id = id_of(self.number, self.rng.below(IDS));
            let done = match self.rng.below(20) {
                0..10 => self.write(id).await,
                10..14 => self.erase(id).await,
                14..16 => self.discard(id),
                16 => self.refresh(id).await,
                _ => self.read(id).await,
            };
            if let Err(what) = done? {
                return Ok(Err(format!("client {}: {what}", self.number)));
            }
            let mut model = self.model.borrow_mut();
            // Others may have met one that nobody was told of yet.
            model.bad = model.bad.max(bad_blocks(&self.raw) - self.raw.stats().unsaved_bad as u32);
        }
        Ok(Ok(()))
    }

    async fn write(&mut self, id: u128) -> Done {
        let version = {
            let mut model = self.model.borrow_mut();
            model.next_version += 1;
            let version = model.next_version;
            model.known(id).versions.push(version);
            version
        };
        let channels = u64::from(self.raw.geometry().channels);
        let place = match self.rng.chance(0.5) {
            true => Place::ById,
            false => Place::Channel(self.rng.below(channels) as u16),
        };
        let written = self.raw.write(&self.client, id, place, contents(&self.raw, id, version)).await;
        let mut model = self.model.borrow_mut();
        let known = model.known(id);
        match written {
            Ok(_) if known.current.is_some() => return Ok(Err(format!("{id:032x} was written twice"))),
            Ok(_) => {
                (known.current, known.versions, known.may_be_absent) = (Some(version), vec![version], false);
                model.count("writes acknowledged");
            }
            Err(RawError::Exists { .. }) if known.current.is_some() => {
                known.versions.retain(|&other| other != version);
            }
            Err(RawError::Full { .. }) => {
                known.versions.retain(|&other| other != version);
                model.count("writes refused: full");
            }
            Err(error) if is_over(&error) => return Err(error),
            Err(error) => return Ok(Err(format!("write {id:032x}: {error}: {known:?}"))),
        }
        Ok(Ok(()))
    }

    async fn erase(&mut self, id: u128) -> Done {
        let was = {
            let mut model = self.model.borrow_mut();
            let known = model.known(id);
            known.may_be_absent |= known.current.is_some();
            known.current.take()
        };
        let erased = self.raw.erase(&self.client, id).await;
        let mut model = self.model.borrow_mut();
        let known = model.known(id);
        match erased {
            Ok(_) if was.is_some() => {
                (known.versions, known.may_be_absent) = (Vec::new(), true);
                model.count("erases acknowledged");
            }
            Err(RawError::NotFound { .. }) if was.is_none() => {}
            Err(error) if is_over(&error) => return Err(error),
            other => return Ok(Err(format!("erase {id:032x}, version {was:?}: {other:?}"))),
        }
        Ok(Ok(()))
    }

    fn discard(&mut self, id: u128) -> Done {
        let discarded = self.raw.discard(id);
        let mut model = self.model.borrow_mut();
        let known = model.known(id);
        match discarded {
            Ok(()) if known.current.take().is_some() => {
                known.may_be_absent = true;
                model.count("discards");
            }
            Err(RawError::NotFound { .. }) if known.current.is_none() => {}
            other => return Ok(Err(format!("discard {id:032x}: {other:?}: {known:?}"))),
        }
        Ok(Ok(()))
    }

    async fn refresh(&mut self, id: u128) -> Done {
        let was = self.model.borrow_mut().known(id).current;
        match self.raw.refresh(&self.client, id).await {
            Ok(_) if was.is_some() => self.model.borrow_mut().count("refreshes"),
            Err(RawError::NotFound { .. }) if was.is_none() => {}
            Err(RawError::Full { .. }) => {}
            Err(error) if is_over(&error) => return Err(error),
            other => return Ok(Err(format!("refresh {id:032x}, version {was:?}: {other:?}"))),
        }
        Ok(Ok(()))
    }

    async fn read(&mut self, id: u128) -> Done {
        let was = self.model.borrow_mut().known(id).current;
        match read(&self.raw, id).await? {
            Ok(found) if found == was => Ok(Ok(())),
            Ok(found) => Ok(Err(format!("segment {id:032x} reads as {found:?}, not {was:?}"))),
            Err(what) => Ok(Err(what)),
        }
    }
}
