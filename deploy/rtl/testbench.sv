// Plays the frames of packets.bin, one a tick, and compares every spike with spikes.bin and every vote with votes.mem.
//
// packets.bin: big-endian words of 32 bits {last, 3 zeros, delay 4, core 16, axon 8}; a tick's packets end with a word
// whose highest bit is 1 and which is no packet. spikes.bin: for every tick and core, a bit for each neuron, neuron 0 in
// the lowest bit of the last byte. The first WARM_UP ticks have no input and are not compared: cores come to rest.
module testbench;
    import map_parameters::*;

    localparam int AXON_BITS = $clog2(AXONS);
    localparam int NEURON_BITS = $clog2(NEURONS);
    localparam int CORE_INDEX = CORES > 1 ? $clog2(CORES) : 1;

    // verilator lint_off UNUSEDSIGNAL
    logic clock = 1'b0, reset = 1'b1, packet = 1'b0, start = 1'b0;
    logic [15:0] packet_core = '0, spike_core;
    logic [AXON_BITS-1:0] packet_axon = '0, vote_action;
    logic [NEURON_BITS-1:0] spike_neuron;
    logic [$clog2(SLOTS)-1:0] packet_delay = '0;
    logic ready, done, spike, vote;

    core_array #(
        .CORES(CORES), .CROSSBARS(CROSSBARS), .AXONS(AXONS), .NEURONS(NEURONS), .TYPES(TYPES), .TYPE_BITS(TYPE_BITS),
        .WEIGHT_BITS(WEIGHT_BITS), .THETA_BITS(THETA_BITS), .POTENTIAL_BITS(POTENTIAL_BITS), .SLOTS(SLOTS),
        .WEIGHTS(WEIGHTS)
    ) student (.*);

    // verilator lint_on UNUSEDSIGNAL
    // verilator lint_off BLKSEQ
    always #5 clock = !clock;
    // verilator lint_on BLKSEQ

    logic [NEURONS-1:0] fired [CORES];
    int                 votes [ACTIONS];
    longint             cycles = 0, spikes = 0;

    always @(posedge clock) begin
        cycles <= cycles + 1;
        if (spike) begin
            fired[CORE_INDEX'(spike_core)][spike_neuron] <= 1'b1;
            spikes <= spikes + 1;
        end
        if (vote) votes[32'(vote_action)] <= votes[32'(vote_action)] + 1;
    end

    int packets_file, spikes_file, differ = 0, votes_differ = 0, expected_votes [FRAMES*ACTIONS];
    // verilator lint_off UNUSEDSIGNAL
    logic [31:0] word;
    // verilator lint_on UNUSEDSIGNAL
    logic [NEURONS-1:0] expected;
    longint began;

    // Inputs change at the falling edge, so that no simulator can take them for a rising edge's.
    task automatic send_packets();
        void'($fread(word, packets_file));
        while (!word[31]) begin
            if (!ready) $fatal(1, "the cores take no packet");
            packet = 1'b1;
            packet_delay = word[24 +: $clog2(SLOTS)];
            packet_core = word[8 +: 16];
            packet_axon = word[0 +: AXON_BITS];
            @(negedge clock);
            void'($fread(word, packets_file));
        end
        packet = 1'b0;
    endtask

    task automatic compare(input int tick);
        for (int core = 0; core < CORES; core++) begin
            if ($fread(expected, spikes_file) != NEURONS / 8) $fatal(1, "spikes.bin ends before tick %0d", tick);
            if (fired[core] != expected) begin
                if (differ == 0)
                    $display("tick %0d, core %0d: neurons %h fired, %h were expected", tick, core, fired[core], expected);
                differ = differ + $countones(fired[core] ^ expected);
            end
        end
        if (tick >= DEPTH)
            for (int action = 0; action < ACTIONS; action++)
                if (votes[action] != expected_votes[(tick - DEPTH) * ACTIONS + action]) votes_differ = votes_differ + 1;
    endtask

    initial begin
        packets_file = $fopen("packets.bin", "rb");
        spikes_file = $fopen("spikes.bin", "rb");
        if (packets_file == 0 || spikes_file == 0) $fatal(1, "packets.bin and spikes.bin are wanted in this folder");
        $readmemh("votes.mem", expected_votes);
        repeat (2) @(negedge clock);
        reset = 1'b0;
        for (int tick = -WARM_UP; tick < FRAMES + DEPTH; tick++) begin
            for (int core = 0; core < CORES; core++) fired[core] = '0;
            for (int action = 0; action < ACTIONS; action++) votes[action] = 0;
            began = cycles;
            if (tick >= 0 && tick < FRAMES) send_packets();
            start = 1'b1;
            @(negedge clock);
            start = 1'b0;
            while (!done) @(negedge clock);
            if (tick >= 0) compare(tick);
            if (tick == -1) $display("%0d cycles a tick", cycles - began);
        end
        $display("%0d frames, %0d ticks, %0d spikes, %0d cycles", FRAMES, FRAMES + DEPTH, spikes, cycles);
        $display("%0d spikes differ, %0d votes differ", differ, votes_differ);
        if (differ != 0 || votes_differ != 0) $fatal(1, "the gates differ from the core simulator");
        $finish;
    end
endmodule
