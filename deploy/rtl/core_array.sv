// CORES neurosynaptic cores, played in turn by one datapath: a tick after another, one neuron a cycle.
//
// With CORES = 1 this is one core. With more, the datapath goes from core to core; crossbars that several cores share are
// stored once. A tick:
//
//   host packets   one a cycle while idle: a spike for an axon of a core, delay ticks from now
//   start          one cycle; then for each core 2 to take its axons from the scheduler and to look up its crossbar, 1 for
//                  each neuron up to the last one in use, 3 until the last one's spike is written
//   done           high for one cycle; the next tick begins
//
// A neuron's spike goes to one axon, 1..SLOTS-1 ticks later, or is a vote.
module core_array #(
    parameter int CORES = 1,
    parameter int CROSSBARS = 1,
    parameter int AXONS = 256,
    parameter int NEURONS = 256,
    parameter int TYPES = 2,
    parameter int TYPE_BITS = 1,
    parameter int WEIGHT_BITS = 9,
    parameter int THETA_BITS = 9,
    parameter int POTENTIAL_BITS = 20,
    parameter int SLOTS = 16,
    parameter logic [TYPES*WEIGHT_BITS-1:0] WEIGHTS = {-9'sd1, 9'sd1},
    parameter CROSSBAR_IMAGE = "crossbar.mem",
    parameter NEURON_IMAGE = "neuron.mem",
    parameter TYPE_IMAGE = "type.mem",
    parameter CORE_IMAGE = "core.mem",
    localparam int CORE_BITS = 16,
    localparam int AXON_BITS = $clog2(AXONS),
    localparam int NEURON_BITS = $clog2(NEURONS),
    localparam int SLOT_BITS = $clog2(SLOTS)
) (
    input  logic                   clock,
    input  logic                   reset,
    // A packet of the host, taken while ready.
    input  logic                   packet,
    input  logic [CORE_BITS-1:0]   packet_core,
    input  logic [AXON_BITS-1:0]   packet_axon,
    input  logic [SLOT_BITS-1:0]   packet_delay,
    output logic                   ready,
    input  logic                   start,
    output logic                   done,
    // A neuron fires, whatever its spike is for.
    output logic                   spike,
    output logic [CORE_BITS-1:0]   spike_core,
    output logic [NEURON_BITS-1:0] spike_neuron,
    // It votes.
    output logic                   vote,
    output logic [AXON_BITS-1:0]   vote_action
);
    localparam logic [1:0] UNUSED = 2'd0, DRIVES = 2'd1;
    localparam int WORD_BITS = 2 + SLOT_BITS + CORE_BITS + AXON_BITS + THETA_BITS;
    localparam int CROSSBAR_BITS = 16;
    localparam int DRAIN = 3;
    localparam int CORE_ADDRESS = CORES > 1 ? $clog2(CORES) : 1;
    localparam int NEURON_ADDRESS = $clog2(CORES * NEURONS);
    localparam int CROSSBAR_ADDRESS = $clog2(CROSSBARS * NEURONS);

    // The images. A neuron's word: kind, delay, core and axon that it drives (or action that it votes for), theta.
    (* rom_style = "block" *) logic [AXONS-1:0] crossbars [CROSSBARS*NEURONS];
    (* rom_style = "block" *) logic [WORD_BITS-1:0] neurons [CORES*NEURONS];
    logic [TYPE_BITS*AXONS-1:0] type_rows [CORES];
    logic [CROSSBAR_BITS+NEURON_BITS-1:0] cores [CORES];
    initial begin
        $readmemh(CROSSBAR_IMAGE, crossbars);
        $readmemh(NEURON_IMAGE, neurons);
        $readmemh(TYPE_IMAGE, type_rows);
        $readmemh(CORE_IMAGE, cores);
    end

    typedef enum logic [2:0] {IDLE, TAKE, LOOK_UP, RUN, FINISH} state_t;
    state_t                   state;
    logic [CORE_BITS-1:0]     core;
    logic [NEURON_BITS-1:0]   index, last;
    logic [CROSSBAR_BITS-1:0] crossbar;
    logic [1:0]               drained;
    logic [SLOT_BITS-1:0]     now;
    logic [AXONS-1:0]         axons, taken;
    logic [TYPE_BITS*AXONS-1:0] types;

    assign ready = state == IDLE;

    always_ff @(posedge clock) begin
        done <= 1'b0;
        case (state)
            IDLE: if (start) begin
                core <= '0;
                state <= TAKE;
            end
            TAKE: begin
                {crossbar, last} <= cores[CORE_ADDRESS'(core)];
                types <= type_rows[CORE_ADDRESS'(core)];
                state <= LOOK_UP;
            end
            LOOK_UP: begin
                axons <= taken;
                index <= '0;
                state <= RUN;
            end
            RUN: begin
                index <= index + 1'b1;
                drained <= '0;
                if (index == last) state <= FINISH;
            end
            default: begin
                drained <= drained + 1'b1;
                if (drained == 2'(DRAIN - 1)) begin
                    core <= core + 1'b1;
                    state <= core == CORE_BITS'(CORES - 1) ? IDLE : TAKE;
                    done <= core == CORE_BITS'(CORES - 1);
                    if (core == CORE_BITS'(CORES - 1)) now <= now + 1'b1;
                end
            end
        endcase
        if (reset) begin
            state <= IDLE;
            now <= '0;
        end
    end

    // Three stages: read the neuron, count, compare.
    logic [AXONS-1:0]     row;
    logic [WORD_BITS-1:0] word;
    logic [WORD_BITS-THETA_BITS-1:0] word_q, word_qq;
    logic [NEURON_BITS-1:0] index_q, index_qq, index_qqq;
    logic                 runs_q, runs_qq, runs_qqq, fires;
    logic [1:0]           kind;
    logic [SLOT_BITS-1:0] delay;
    logic [CORE_BITS-1:0] to_core;
    logic [AXON_BITS-1:0] to_axon;

    always_ff @(posedge clock) begin
        row <= crossbars[CROSSBAR_ADDRESS'({crossbar, index})];
        word <= neurons[NEURON_ADDRESS'({core, index})];
        {word_qq, word_q} <= {word_q, word[WORD_BITS-1:THETA_BITS]};
        {index_qqq, index_qq, index_q} <= {index_qq, index_q, index};
        {runs_qqq, runs_qq, runs_q} <= {runs_qq, runs_q, state == RUN && !reset};
    end

    neuron #(
        .AXONS(AXONS), .TYPES(TYPES), .TYPE_BITS(TYPE_BITS), .WEIGHT_BITS(WEIGHT_BITS), .THETA_BITS(THETA_BITS),
        .POTENTIAL_BITS(POTENTIAL_BITS), .WEIGHTS(WEIGHTS)
    ) datapath (
        .clock(clock), .row(row), .axons(axons), .types(types), .theta(word[THETA_BITS-1:0]), .fires(fires)
    );

    assign {kind, delay, to_core, to_axon} = word_qq;
    assign spike = runs_qqq && fires && kind != UNUSED;
    assign spike_core = core;
    assign spike_neuron = index_qqq;
    assign vote = spike && kind != DRIVES;
    assign vote_action = to_axon;

    // The router: a spike, a packet or a core's turn reaches the scheduler; the states keep them apart.
    logic drives, from_host;
    assign from_host = ready && packet;
    assign drives = spike && kind == DRIVES;

    scheduler #(.CORES(CORES), .AXONS(AXONS), .SLOTS(SLOTS), .CORE_BITS(CORE_BITS)) on_their_way (
        .clock(clock), .set(drives || from_host), .take(state == TAKE),
        .core(drives ? to_core : from_host ? packet_core : core),
        .slot(drives ? now + delay : from_host ? now + packet_delay : now),
        .axon(drives ? to_axon : packet_axon), .taken(taken)
    );

    if (NEURONS != 1 << NEURON_BITS) begin : neurons_must_be_a_power_of_two
        $error("NEURONS must be a power of two");
    end
endmodule
