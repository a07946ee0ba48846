//! Keys that a full cache refused of late: one that comes again before long is worth the place of another.
//!
//! Of reads all over the data hardly any comes again while its row would lie in the cache, and keeping each costs a tenth of a
//! GET's processor time: the row's memory, and that of the one which it pushes out. (The doorkeeper of Einziger et al.,
//! "TinyLFU: A Highly Efficient Cache Admission Policy", with the age that a table of fixed size gives for free.)

/// Keys remembered for each row that the cache holds. With more a cache whose hot keys change has the new ones sooner; with fewer
/// what is read all over the data is kept more rarely.
const SLOTS_PER_ROW: usize = 4;
/// Fewest keys remembered.
const SLOTS_MIN: usize = 64;

/// Each key has one slot by its hash, and the youngest of a slot's keys has it: a key is forgotten after about as many others as
/// there are slots.
#[derive(Default)]
pub struct Refused {
    /// Fingerprints; zero is nobody's.
    slots: Vec<u16>,
}

impl Refused {
    /// Whether the key with this hash was refused lately by a cache that holds `cached` rows: then it is forgotten, for it is
    /// taken now. If not, it is remembered.
    pub fn take_or_put(&mut self, hash: u64, cached: usize) -> bool {
        let slots = (cached * SLOTS_PER_ROW).next_power_of_two().max(SLOTS_MIN);
        // Half or twice as many will do: the number of rows is never quite still, and a new table remembers nobody.
        if self.slots.len() < slots / 2 || self.slots.len() > slots * 2 {
            self.slots = vec![0; slots];
        }
        let slot = (hash >> 32) as usize & (self.slots.len() - 1);
        let print = hash as u16 | 1;
        let is_known = self.slots[slot] == print;
        self.slots[slot] = if is_known { 0 } else { print };
        is_known
    }
}
