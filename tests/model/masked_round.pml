/* One masked round against a server that lies: docs/masked.md, "What has to hold".
 *
 * The members that CORRUPT names obey the server, which sees all that is sent, decides in what order the others act, and
 * tells each of them what it likes: a view of the round (roster, sharers, terms, model: all that masks and signatures are
 * bound to), a set of survivors, and the signatures. So every choice below is the server's. Cryptography is perfect: a
 * secret is known to who has T shares of it, and a mask between two members to who knows the mask key of one of them.
 *
 * N members stand on a circle, each a neighbour of the K nearest (K = N - 1: of all). T shares open a secret; a member
 * answers if QUORUM members signed its set. `removed`: the defences that this run leaves out (tests/model/models.py).
 */

#define ONE_SIGNATURE 1 /* a client signs one set in a round */
#define ONE_ANSWER    2 /* it answers once */
#define ONE_SHARE     4 /* an answer has one share for each neighbour, never both */
#define NEIGHBOURS    8 /* T neighbours among the survivors have signed the set */
#define ROSTER       16 /* QUORUM members have signed the set */
#define BOUND_SIGNS  32 /* a signature is of the whole view */
#define BOUND_MASKS  64 /* a mask is of the whole view */
#define SELF_MASK   128 /* a vector has a mask of its client alone, too */
#define THRESHOLD   256 /* T shares open a secret: more than the helpers have */

#define has(set, u) (((set) >> (u)) & 1)
#define near(u, w) ((u) != (w) && (K == N - 1 || ((u) + N - (w)) % N <= K / 2 || ((w) + N - (u)) % N <= K / 2))

c_decl {
    static int removed(void) {
        static int defences = -1;
        if (defences < 0) defences = getenv("REMOVED") ? atoi(getenv("REMOVED")) : 0;
        return defences;
    }
    static int neighbours_of(int u) {
        static int found[N];
        int w, set = 0;
        if (found[u]) return found[u];
        for (w = 0; w < N; w++) set |= near(u, w) << w;
        return found[u] = set;
    }
};

/* For the parts in C. `now` is the state. */
#define WITHOUT(defence) (removed() & (defence))
#define SIZE(set) __builtin_popcount(set)
#define OPENS(u, given) (SIZE((given) | (CORRUPT & neighbours_of(u))) >= (WITHOUT(THRESHOLD) ? 1 : T))
#define SEED_KNOWN(u) (WITHOUT(SELF_MASK) || OPENS(u, now.seed_shares[u]))
#define KEY_KNOWN(u) OPENS(u, now.key_shares[u])

byte view[N];    /* what a member was told about the round; 0: it has not contributed */
short chosen[N]; /* the set that it signed last; 0: none */
short before[N]; /* the one before, where it signs two */
short answered[N];
short seed_shares[N], key_shares[N]; /* who gave the server a share of this member's seed, of its mask key */

/* What has to hold in every state. */
bool nobody_gives_away_both_secrets = true;
bool one_set_in_a_round = true;
bool one_sum_in_a_round = true;
bool no_sum_of_few = true;
bool told_the_same = true;

/* What the server can compute. The members that nobody can tell apart are a part: with a member, all honest neighbours
 * with which it has a mask that is not known. A part can be opened if all of it has contributed under masks that cancel,
 * and all its seeds are known. */
inline check() {
    c_code { /* `continue` is a macro here */
        int u, w, m, first = 0;
        for (u = 0; u < N; u++) {
            int part = 1 << u, grown = 0, opens = !has(CORRUPT, u) && now.view[u], alike = 1;
            if (!has(CORRUPT, u) && OPENS(u, now.seed_shares[u]) && OPENS(u, now.key_shares[u]))
                now.nobody_gives_away_both_secrets = 0;
            for (w = 0; w < N; w++)
                if (now.answered[u] && now.answered[w] &&
                    (now.answered[u] != now.answered[w] || now.view[u] != now.view[w])) now.one_set_in_a_round = 0;
            while (opens && part != grown) {
                grown = part;
                for (m = 0; m < N; m++) {
                    if (has(part, m)) opens = opens && SEED_KNOWN(m);
                    if (has(part, m)) alike = alike && now.view[m] == now.view[u];
                    for (w = 0; w < N; w++)
                        if (has(part, m) && near(m, w) && !has(CORRUPT, w) && !KEY_KNOWN(m) && !KEY_KNOWN(w)) {
                            int cancels = now.view[w] && (now.view[w] == now.view[m] || WITHOUT(BOUND_MASKS));
                            part |= 1 << w;
                            opens = opens && cancels;
                        }
                }
            }
            if (opens && SIZE(part) < FEWEST) now.no_sum_of_few = 0;
            if (opens && first && part != first) now.one_sum_in_a_round = 0;
            if (opens && !alike) now.told_the_same = 0;
            if (opens) first = part;
        }
    };
    assert(nobody_gives_away_both_secrets);
    assert(one_set_in_a_round);
    assert(no_sum_of_few);
    assert(one_sum_in_a_round);
    assert(told_the_same)
}

#define me _pid
#define ME Pclient->_pid

active [N] proctype client() {
    short set;
    byte place;
    bool agreed;

    !has(CORRUPT, me); /* the others are the server's, and need no process */
    atomic { /* a vector may arrive at any time, also after all others have answered */
        if
        :: view[me] = 1
        :: view[me] = 2
        fi;
        check()
    }
    do
    :: atomic { /* confirm any set that the server names */
        c_expr { (!now.chosen[ME] || (WITHOUT(ONE_SIGNATURE) && !now.before[ME])) &&
                 (!now.answered[ME] || WITHOUT(ONE_ANSWER)) } ->
        do
        :: place < N - 1 -> set = set | (1 << place); place++
        :: place < N - 1 -> place++
        :: place == N - 1 -> set = set | (1 << place); break
        :: place == N - 1 -> break
        od;
        place = 0;
        if /* this client is in it, with T neighbours, and enough others */
        :: c_expr { has(Pclient->set, ME) && SIZE(Pclient->set) >= FEWEST_SURVIVORS &&
                    SIZE(Pclient->set & neighbours_of(ME)) >= T && Pclient->set != now.chosen[ME] } ->
            before[me] = chosen[me];
            chosen[me] = set
        :: else
        fi;
        set = 0
       }
    :: atomic { /* answer, once the server has shown enough signatures of the set */
        c_expr { now.chosen[ME] && now.chosen[ME] != now.answered[ME] &&
                 (!now.answered[ME] || WITHOUT(ONE_ANSWER)) } ->
        c_code {
            int set = now.chosen[ME], members = 1, neighbours = 0, w;
            for (w = 0; w < N; w++) {
                int alike = WITHOUT(BOUND_SIGNS) || now.view[w] == now.view[ME];
                int signs = has(CORRUPT, w) || ((now.chosen[w] == set || now.before[w] == set) && alike);
                members += w != ME && has(set, w) && signs;
                neighbours += near(ME, w) && has(set, w) && signs;
            }
            Pclient->agreed = (WITHOUT(NEIGHBOURS) || neighbours >= T) && (WITHOUT(ROSTER) || members >= QUORUM);
            for (w = 0; w < N && Pclient->agreed; w++) {
                if (near(ME, w) && (has(set, w) || WITHOUT(ONE_SHARE))) now.seed_shares[w] |= 1 << ME;
                if (near(ME, w) && (!has(set, w) || WITHOUT(ONE_SHARE))) now.key_shares[w] |= 1 << ME;
            }
            if (Pclient->agreed) now.answered[ME] = set;
        };
        if
        :: agreed -> agreed = false; check()
        :: else
        fi
       }
    od
}
