/* Masked sums over several rounds against a server that lies: docs/masked.md, "One set of survivors".
 *
 * A round is what masked_round.pml leaves of it: the server names a roster, a sum and a set of survivors, and the sum
 * over the set opens if a quorum of the roster signed it. (A second set of the same round opens nothing, and its
 * signatures only bind their signers.) The server may repeat a sum, go on with the other one and come back to it, call
 * any round failed, say that it was restored from a backup, and leave out whom it likes; members crash and restart
 * between any two steps. What a member has on its disk is its record (client_sdk/store/states.py).
 *
 * MEMBERS members, of whom those in CORRUPT help the server. A roster has at most COHORT of them. A quorum of n members: more than
 * (n + TOLERATED) / 2. REPEATED: all sums are over the same data, and sets may shrink by
 * DIFFERENCE members at a time.
 */

#define ONE_SET       1 /* a member signs one set for one sum; REPEATED: a chain of sets */
#define STORED_FIRST  2 /* the record is stored before the signature is sent */
#define EARLIER       4 /* a member takes no part in a sum again after it signed a set for another one */
#define HELPERS       8 /* the quorum counts the members that sign everything */
#define UNIVERSE     16 /* REPEATED: rosters are of members of the first one */
#define WHOLE_COHORT 32 /* REPEATED: the quorum is of the task's cohort, not of the roster */

#define has(set, u) (((set) >> (u)) & 1)
#define honest(u) (!has(CORRUPT, u))
#define QUORUM(n) (((n) + TOLERATED) / 2 + 1)

c_decl {
    static int removed(void) {
        static int defences = -1;
        if (defences < 0) defences = getenv("REMOVED") ? atoi(getenv("REMOVED")) : 0;
        return defences;
    }
};
#define WITHOUT(defence) (removed() & (defence))
#define SIZE(set) __builtin_popcount(set)

byte sum_of[MEMBERS];   /* record: the sum for which it signed a set last; 0: none */
short set_of[MEMBERS];  /* record: that set */
byte earlier[MEMBERS];  /* record: other sums for which it signed one */
short universe[MEMBERS]; /* record: the first roster in which it contributed */
short opened[ROUNDS];   /* the sets whose sums the server has opened, in no order */
byte sum_opened[ROUNDS];
short signed_by[ROUNDS];

bool one_set_for_one_sum = true;
bool no_sums_isolate_few = true;
bool one_chain_of_sums = true;

byte rounds, sum, u;
short roster, set, signers;
bool ok, crashes;

/* All linear combinations of three opened sums with coefficients -1, 0 and 1 */
inline check() {
    c_code {
        int i, j, k, a, b, m;
        for (i = 0; i < now.rounds; i++)
            for (j = 0; j < now.rounds; j++) {
                int x = now.opened[i], y = now.opened[j], same = REPEATED || now.sum_opened[i] == now.sum_opened[j];
                int nested = (x & y) == x || (x & y) == y;
                if (x && y && x != y && same) {
                    if (now.signed_by[i] & now.signed_by[j] & ~CORRUPT && !REPEATED) now.one_set_for_one_sum = 0;
                    if (x & y & ~CORRUPT && (!nested || SIZE(x ^ y) < DIFFERENCE)) now.one_chain_of_sums = !REPEATED;
                    for (k = 0; k < now.rounds; k++)
                        for (a = -1; a < 2; a++)
                            for (b = -1; b < 2; b++) {
                                int z = now.opened[k], alone = 0;
                                int other = z && (REPEATED || now.sum_opened[k] == now.sum_opened[i]);
                                for (m = 0; m < MEMBERS; m++)
                                    alone += honest(m) && has(x, m) + a * has(y, m) + b * other * has(z, m) != 0;
                                if (alone && alone < FEWEST) now.no_sums_isolate_few = 0;
                            }
                }
            }
    };
    assert(one_set_for_one_sum);
    assert(one_chain_of_sums);
    assert(no_sums_isolate_few)
}

inline choose(result) {
    result = 0;
    u = 0;
    do
    :: u < MEMBERS -> result = result | (1 << u); u++
    :: u < MEMBERS -> u++
    :: u == MEMBERS -> break
    od;
    u = 0
}

active proctype server() {
    do
    :: rounds < ROUNDS ->
        atomic { /* a round: its sum, its roster, and the survivors that are named, who have contributed */
            if
            :: sum = 1
            :: sum = 2 - REPEATED
            fi;
            choose(roster);
            choose(set);
            c_code {
                int m, fits = SIZE(now.roster) <= COHORT && SIZE(now.set) >= 3 && (now.set & ~now.roster) == 0;
                for (m = 0; m < MEMBERS; m++)
                    if (has(now.set, m) && honest(m)) {
                        if (has(now.earlier[m], now.sum) && !WITHOUT(EARLIER)) fits = 0;
                        if (REPEATED && !now.universe[m]) now.universe[m] = now.roster;
                        if (REPEATED && now.roster & ~now.universe[m] && !WITHOUT(UNIVERSE)) fits = 0;
                    }
                now.ok = fits;
            };
            ok;
            ok = false
        }
        do
        :: u < MEMBERS && has(set, u) && honest(u) ->
            atomic { /* a survivor confirms the set, or it refuses, is not asked, or does not answer */
                if
                :: skip
                :: if
                   :: crashes = false
                   :: c_expr { WITHOUT(STORED_FIRST) } -> crashes = true /* after the signature, before the record */
                   fi;
                   c_code {
                       int m = now.u, x = now.set_of[m], same = REPEATED || now.sum_of[m] == now.sum;
                       int counted = REPEATED && !WITHOUT(WHOLE_COHORT) ? COHORT : SIZE(now.roster);
                       int shrinks = REPEATED && (x & now.set) == now.set && SIZE(x ^ now.set) >= DIFFERENCE;
                       now.ok = !x || !same || x == now.set || shrinks || WITHOUT(ONE_SET);
                       if (REPEATED && SIZE(now.set) < QUORUM(counted)) now.ok = 0;
                       if (now.ok) now.signers |= 1 << m;
                       if (now.ok && !now.crashes) {
                           if (x && !same) now.earlier[m] |= 1 << now.sum_of[m];
                           now.sum_of[m] = now.sum;
                           now.set_of[m] = now.set;
                       }
                       now.ok = 0;
                   };
                   crashes = false
                fi;
                u++
            }
        :: u < MEMBERS && !(has(set, u) && honest(u)) -> u++
        :: u == MEMBERS -> u = 0; break
        od;
        atomic { /* the server opens what it can */
            c_code {
                int counted = REPEATED && !WITHOUT(WHOLE_COHORT) ? COHORT : SIZE(now.roster);
                int signatures = now.signers | (now.set & CORRUPT);
                int needed = WITHOUT(HELPERS) ? counted / 2 + 1 : QUORUM(counted);
                if (SIZE(signatures) >= needed && now.signers) {
                    now.opened[now.rounds] = now.set;
                    now.sum_opened[now.rounds] = now.sum;
                    now.signed_by[now.rounds] = signatures;
                }
                now.rounds++;
            };
            check();
            roster = 0;
            set = 0;
            signers = 0;
            sum = 0
        }
        if
        :: skip
        :: !REPEATED -> /* it says that it was restored: members no longer repeat a sum over the same set */
            c_code {
                int m;
                for (m = 0; m < MEMBERS; m++)
                    if (now.set_of[m]) now.earlier[m] |= 1 << now.sum_of[m];
            }
        fi
    :: else -> break
    od
}
