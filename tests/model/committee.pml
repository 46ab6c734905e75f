/* The committee of one-shot sums against a server that lies: docs/oneshot.md, "What has to hold".
 *
 * All rounds are over the same data. In each, every client has contributed, and the server may get two sums: over SET 1,
 * of all clients, and over SET 2, of all but a victim. Their difference is the victim's vector. A sum opens if T members
 * of the round's committee send their sum of shares for its set. The server shows members what it likes, in any order,
 * and calls rounds failed; it says to members that it was restored; members crash and restart between any two steps.
 * What a member has on its disk is its record (client_sdk/committee/record.py).
 *
 * POPULATION members, of whom those in CORRUPT help the server; COMMITTEE of them serve in a round. A client sends its
 * data to a committee with at most MOST_NEW members that were not in each earlier one (client_sdk/rounds/oneshot.py).
 */

#define ONE_SET       1 /* a member signs one set in a round */
#define ONE_SUM       2 /* a member that sent its sum of shares deletes its key of the round */
#define SIGNATURES    4 /* it sends its sum only with T signatures of the set */
#define STORED_FIRST  8 /* the record is stored before anything is sent */
#define REMEMBERS    16 /* a member remembers the sets that it helped to open, in all rounds over the same data */
#define NEW_MEMBERS  32 /* clients accept few new members */
#define NEW_KEYS     64 /* a member goes back to an earlier round with a new key, which opens nothing of it */

#define has(set, u) (((set) >> (u)) & 1)
#define honest(u) (!has(CORRUPT, u))

c_decl {
    static int removed(void) {
        static int defences = -1;
        if (defences < 0) defences = getenv("REMOVED") ? atoi(getenv("REMOVED")) : 0;
        return defences;
    }
};
#define WITHOUT(defence) (removed() & (defence))
#define SIZE(set) __builtin_popcount(set)

byte rounds;              /* rounds so far */
byte committee;           /* of this round */
byte seen[ROUNDS];        /* committees to which clients have sent the data */
byte signatures[3];       /* set -> who signed it in this round */
byte sums[3];             /* set -> who sent a sum of shares for it, of this round's contributions */
bool opened[3];           /* sets whose sums the server has opened, in any round */

byte signed_set[POPULATION]; /* record: the set that a member signed in this round; 0: none */
bool summed[POPULATION];     /* record: whether it has sent, or may have sent, its sum for it */
byte released[POPULATION];   /* record: the sets that it helped to open before, as bits */
bool has_key[POPULATION];    /* record: its secret key of this round's contributions */
byte at[POPULATION];         /* in memory: the set that it confirmed */

bool one_sum_of_a_round = true;
bool no_sum_isolates_a_client = true;

byte u, set;
bool ok, crashes;

inline may_crash() {
    if
    :: crashes = false
    :: c_expr { WITHOUT(STORED_FIRST) } -> crashes = true /* after it has sent, before it has stored */
    fi
}

inline pick_member() {
    u = 0;
    do
    :: u < POPULATION - 1 -> u++
    :: has(committee, u) && honest(u) -> break
    od
}

active proctype server() {
    do
    :: atomic { /* a round opens, with the committee that the server names */
        rounds < ROUNDS ->
        committee = 0;
        u = 0;
        do
        :: u < POPULATION -> committee = committee | (1 << u); u++
        :: u < POPULATION -> u++
        :: u == POPULATION -> break
        od;
        c_code {
            int m, ok = SIZE(now.committee) == COMMITTEE;
            for (m = 0; m < now.rounds; m++)
                if (SIZE(now.committee & ~now.seen[m]) > MOST_NEW && !WITHOUT(NEW_MEMBERS)) ok = 0;
            now.ok = ok;
            for (m = 0; m < POPULATION; m++) {
                if (now.signed_set[m] && now.summed[m]) now.released[m] |= 1 << now.signed_set[m];
                now.signed_set[m] = 0;
                now.summed[m] = 0;
                now.at[m] = 0;
                now.has_key[m] = has(now.committee, m) && honest(m);
            }
            now.signatures[1] = now.signatures[2] = now.sums[1] = now.sums[2] = 0;
            if (ok) now.seen[now.rounds] = now.committee;
            now.rounds++;
        };
        ok;
        ok = false;
        u = 0
       }
    :: atomic { /* a member is shown a set, and signs it */
        committee ->
        pick_member();
        may_crash();
        if
        :: set = 1
        :: set = 2
        fi;
        c_code {
            int m = now.u, s = now.set, other = 3 - now.set;
            int conflicts = has(now.released[m], other) && !WITHOUT(REMEMBERS);
            if (now.signed_set[m] ? now.signed_set[m] == s || WITHOUT(ONE_SET) : !conflicts) {
                now.signatures[s] |= 1 << m;
                if (!now.crashes) {
                    if (now.signed_set[m] != s) now.summed[m] = 0;
                    now.signed_set[m] = s;
                }
                now.at[m] = now.crashes ? 0 : s;
            }
        };
        u = 0; set = 0; crashes = false
       }
    :: atomic { /* a member that confirmed a set sends its sum of shares */
        committee ->
        pick_member();
        at[u] && has_key[u];
        may_crash();
        c_code {
            int m = now.u, s = now.at[m];
            int agree = SIZE(now.signatures[s] | (now.committee & CORRUPT));
            if (agree >= T || WITHOUT(SIGNATURES)) {
                now.sums[s] |= 1 << m;
                if (!now.crashes) {
                    now.summed[m] = 1;
                    now.has_key[m] = WITHOUT(ONE_SUM) != 0;
                }
                now.at[m] = 0;
            }
            for (m = 1; m < 3; m++)
                if (SIZE(now.sums[m] | (now.committee & CORRUPT)) >= T) {
                    now.opened[m] = 1;
                    if (SIZE(now.sums[3 - m] | (now.committee & CORRUPT)) >= T) now.one_sum_of_a_round = 0;
                }
            if (now.opened[1] && now.opened[2]) now.no_sum_isolates_a_client = 0;
        };
        assert(one_sum_of_a_round);
        assert(no_sum_isolates_a_client);
        u = 0; crashes = false
       }
#ifndef STEADY /* no restarts and no restores, for fewer states */
    :: atomic { /* a member restarts: what it has in memory is gone */
        committee ->
        pick_member();
        at[u] = 0;
        u = 0
       }
    :: atomic { /* the server tells a member that it was restored, and that this round is yet to come */
        committee ->
        pick_member();
        c_code {
            int m = now.u;
            if (now.signed_set[m] && now.summed[m]) now.released[m] |= 1 << now.signed_set[m];
            now.signed_set[m] = 0;
            now.summed[m] = 0;
            now.at[m] = 0;
            if (!WITHOUT(NEW_KEYS)) now.has_key[m] = 0; /* its new key opens nothing of this round's contributions */
        };
        u = 0
       }
#endif
    od
}
