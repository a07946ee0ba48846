//! Connections that together send more than the drive writes at once: who waits for room holds nothing that others need.

use crate::common::client::encode;
use crate::common::{Client, TestServer, info_number};

const CONNECTIONS: usize = 64;
/// So many at once fit the socket: all have sent before one is answered.
const COMMANDS: usize = 16;
const ROUNDS: usize = 8;
const VALUE_BYTES: usize = 8 << 10;

/// Every other command of each connection sets the same key. Writers who waited for room with that key's latch had all others queue up
/// for the latch meanwhile.
#[test]
fn nobody_waits_for_room_with_a_latch() {
    let server = TestServer::start();
    let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| server.client()).collect();
    for _ in 0..ROUNDS {
        for (number, client) in clients.iter_mut().enumerate() {
            let mut commands = Vec::new();
            for n in 0..COMMANDS {
                let key = if n % 2 == 0 { "hot".into() } else { format!("k{number}:{n}") };
                commands.extend(encode(&[b"SET", key.as_bytes(), &[number as u8; VALUE_BYTES]]));
            }
            client.send(&commands);
        }
        for client in &mut clients {
            for _ in 0..COMMANDS {
                assert_eq!(client.read().to_string(), "OK");
            }
        }
    }
    let client = &mut clients[0];
    assert_eq!(client.line("STRLEN k3:1").to_string(), VALUE_BYTES.to_string());
    let commands = (ROUNDS * CONNECTIONS * COMMANDS) as u64;
    let waits = info_number(client, "pumice", "latch_waits");
    // It was one of thirty; where the machine is busy one of ninety meets another on its way.
    assert!(waits < commands / 50, "{waits} waits for latches in {commands} commands");
}
