// The accelerator: CORES adaptive array processing cores, their memories, output units, optimiser and controller.
//
// A host writes and reads memory lines while no job runs, sets a job's words, and starts it. The words, by index:
//   0 kind (0 forward, 1 backward, 2 gradient, 3 adam, 4 noise, 5 errors of transitions, 6 errors through tanh) |
//     4: half | 5: relu | 6: tanh | 7: quantise | 8: mask | 9: the target network's weights
//   1 outputs P          2 inputs Q            3 vectors B           4 stream length       5 load length
//   6 output tiles       7 term tiles          8 weights' line       9 lines of a row of W  10 biases' line
//  11 input's line      12 its lines a vector 13 output's line      14 its lines a vector  15 errors' line
//  16 their lines       17 shift              18 bias shift         19 mantissa            20 scale shift
//  21 zero point        22 output's mantissa  23 output's shift     24 one, of the biases' activation
//  25 lines of parameters                     26 alpha              27 m decay             28 v decay
//  29 epsilon           30 tau, the discount or the noise's deviation           31 the generator's first state
// Kinds 4 to 6 (word_unit.sv) read actions or Q at 11, transitions at 8 (lines a vector: 9), Q' or errors at 15; 2 is
// where the actions begin in a line of errors.
// Vector s lies in bank s mod BANKS; a pair of 16-bit vectors in one word, the even one low.
module accelerator #(
    parameter int CORES = 2,
    parameter int SIDE = 16,
    parameter int STREAM_BITS = 9,
    parameter int PARAMETER_LINES = 32768,
    parameter int VECTOR_LINES = 16384,
    parameter WEIGHT_IMAGE = ""
) (
    input  logic               clock,
    input  logic               reset,
    input  logic               host_write,
    input  logic         [2:0] host_memory,
    input  logic         [2:0] host_bank,
    input  logic        [19:0] host_address,
    input  logic [SIDE*32-1:0] host_line,
    output logic [SIDE*32-1:0] host_read,
    input  logic               word_write,
    input  logic         [4:0] word_index,
    input  logic        [31:0] word,
    input  logic               start,
    output logic               done,
    output logic        [31:0] cycles
);
    localparam int BANKS = CORES > 2 ? CORES : 2;
    localparam int LINE = SIDE * 32;
    localparam int PB = $clog2(PARAMETER_LINES);
    localparam int VB = $clog2(VECTOR_LINES);
    localparam int BANK_BITS = $clog2(BANKS);
    localparam int LAST = 32;   // cycles from a vector's issue to its result
    localparam int SUMMED = 5;  // to its sum
    localparam int BIASED = 9;  // to the addition of the bias
    localparam int STEP = 78;   // from a line of parameters to its new values

    logic [31:0] words [0:31];
    always_ff @(posedge clock) if (word_write) words[word_index] <= word;
    wire [2:0] kind = words[0][2:0];
    wire half = words[0][4], relu = words[0][5], tanh = words[0][6], quantise = words[0][7], mask = words[0][8];
    wire is_forward = kind == 3'd0, is_backward = kind == 3'd1, is_gradient = kind == 3'd2, by_word = kind[2];

    // The unit between two networks.
    wire unit_busy, unit_reading, unit_write;
    wire [1:0] unit_read;
    wire [15:0] unit_vector, unit_part, unit_error_part, unit_written, unit_into;
    wire [LINE-1:0] unit_line;

    // Issue.
    wire stream_valid, stream_first, stream_last, load_valid, line_valid;
    wire [15:0] stream_index, stream_out, stream_term, load_index, load_out, load_term;
    wire [1:0] stream_step, load_step;
    wire [19:0] line;
    wire flushed;
    controller #(.CORES(CORES), .SIDE(SIDE)) control (
        .clock(clock), .reset(reset), .start(start), .flushed(flushed), .kind(kind),
        .stream_length(words[4][15:0]), .load_length(words[5][15:0]), .out_tiles(words[6][15:0]),
        .term_tiles(words[7][15:0]), .lines(words[25][19:0]), .done(done), .cycles(cycles),
        .stream_valid(stream_valid), .stream_first(stream_first), .stream_last(stream_last),
        .stream_index(stream_index), .stream_out(stream_out), .stream_term(stream_term), .stream_step(stream_step),
        .load_valid(load_valid), .load_index(load_index), .load_out(load_out), .load_term(load_term),
        .load_step(load_step), .line_valid(line_valid), .line(line)
    );

    // Weights: a line of a row of W, or the biases' after a forward tile.
    wire bias_load = is_forward && load_index == 16'(CORES * SIDE);
    wire [15:0] load_row = is_forward ? load_out * 16'(SIDE) + load_index / 16'(CORES)
                                      : load_term * 16'(SIDE) + load_index;
    wire [15:0] load_part = is_forward ? load_term * 16'(CORES) + load_index % 16'(CORES) : load_out;
    wire [19:0] load_address = bias_load ? words[10][19:0] + 20'(load_out)
                                         : words[8][19:0] + 20'(load_row) * words[9][19:0] + 20'(load_part);
    wire load_inside = bias_load || (32'(load_row) < words[1] && 32'(load_part) < words[9]);
    logic load_1, bias_1, inside_1, load_bank_1;
    logic [1:0] load_step_1;
    logic [15:0] load_index_1;
    always_ff @(posedge clock) begin
        load_1 <= load_valid && !bias_load;
        bias_1 <= load_valid && bias_load;
        inside_1 <= load_inside;
        load_step_1 <= load_step;
        load_index_1 <= load_index;
    end

    // Parameters: weight, target, gradient, m, v.
    wire [LINE-1:0] parameter_line [0:4];
    wire [LINE-1:0] parameter_new [0:4];
    logic [STEP:0] line_valids;
    logic [19:0] line_addresses [0:STEP];
    wire adam_write = line_valids[STEP];
    wire gradient_write;
    wire [19:0] gradient_address;
    wire [LINE-1:0] gradient_line;
    integer a;
    always_ff @(posedge clock) begin
        line_valids <= reset ? '0 : {line_valids[STEP-1:1], line_valid, 1'b0};
        line_addresses[1] <= words[8][19:0] + line;
        for (a = 1; a < STEP; a = a + 1) line_addresses[a+1] <= line_addresses[a];
    end
    genvar g;
    generate
        for (g = 0; g < 5; g = g + 1) begin : parameters
            wire host = host_write && host_memory == 3'(g);
            wire [19:0] read = line_valid ? words[8][19:0] + line : (load_valid ? load_address : host_address);
            wire step_write = g == 2 ? gradient_write : adam_write;
            wire [19:0] step_address = g == 2 ? gradient_address : line_addresses[STEP];
            memory #(.WIDTH(LINE), .DEPTH(PARAMETER_LINES), .IMAGE(g == 0 ? WEIGHT_IMAGE : "")) lines (
                .clock(clock), .read_address(read[PB-1:0]), .read_line(parameter_line[g]),
                .write(host || step_write), .write_address(PB'(host ? host_address : step_address)),
                .write_line(host ? host_line : parameter_new[g])
            );
        end
        for (g = 0; g < SIDE; g = g + 1) begin : optimiser
            adam_lane lane (
                .clock(clock), .weight(parameter_line[0][g*32+:32]), .target(parameter_line[1][g*32+:32]),
                .m(parameter_line[3][g*32+:32]), .v(parameter_line[4][g*32+:32]),
                .gradient(parameter_line[2][g*32+:32]), .m_decay(words[27]), .v_decay(words[28]), .tau(words[30]),
                .alpha(words[26]), .epsilon(words[29]), .new_weight(parameter_new[0][g*32+:32]),
                .new_target(parameter_new[1][g*32+:32]), .new_m(parameter_new[3][g*32+:32]),
                .new_v(parameter_new[4][g*32+:32])
            );
        end
    endgenerate
    assign parameter_new[2] = gradient_line;
    wire [LINE-1:0] loaded = !inside_1 ? '0 : (words[0][9] ? parameter_line[1] : parameter_line[0]);
    logic [LINE-1:0] biases [0:3];
    always_ff @(posedge clock) if (bias_1) biases[load_step_1] <= loaded;

    // What travels with a vector, from issue to result; a gradient's tile joins at its sum, column by column.
    logic [LAST:1] valids;
    logic draining;
    logic [15:0] drain_at, drain_out, drain_term;
    wire biases_tile = is_gradient && drain_term == 16'd0;
    wire drain_inside = biases_tile ? drain_at == 16'd0 : 32'(drain_out) * SIDE + 32'(drain_at) < words[1];
    wire issue_affine = half && is_forward;
    integer t;
    logic [15:0] index_of [1:LAST];
    logic [15:0] out_of [1:LAST];
    logic [15:0] term_of [1:LAST];
    logic [1:0] step_of [1:LAST];
    logic affine_of [1:LAST];
    logic tile_last [1:4];
    always_ff @(posedge clock) begin
        valids[1] <= !reset && stream_valid && stream_last && !is_gradient;
        index_of[1] <= stream_index;
        out_of[1] <= stream_out;
        term_of[1] <= stream_term;
        step_of[1] <= stream_step;
        affine_of[1] <= issue_affine;
        tile_last[1] <= !reset && stream_valid && stream_last && is_gradient;
        for (t = 1; t < 4; t = t + 1) tile_last[t+1] <= tile_last[t];
        for (t = 1; t < LAST; t = t + 1) begin
            valids[t+1] <= !reset && valids[t];
            index_of[t+1] <= index_of[t];
            out_of[t+1] <= out_of[t];
            term_of[t+1] <= term_of[t];
            step_of[t+1] <= step_of[t];
            affine_of[t+1] <= affine_of[t];
        end
        // Elements hold a tile's sums from the cycle after its last product on.
        if (reset) draining <= 1'b0;
        else if (tile_last[3]) begin
            draining <= 1'b1;
            drain_at <= 16'd0;
            drain_out <= out_of[3];
            drain_term <= term_of[3];
        end else if (draining) begin
            drain_at <= drain_at + 16'd1;
            if (drain_at == 16'(SIDE - 1)) draining <= 1'b0;
        end
        if (is_gradient) begin
            valids[5] <= !reset && draining && drain_inside;
            index_of[5] <= drain_at;
            out_of[5] <= drain_out;
            term_of[5] <= drain_term;
            affine_of[5] <= half && !biases_tile;
        end
    end
    assign flushed = !(|valids) && !(|line_valids) && !draining && !tile_last[1] && !tile_last[2] && !tile_last[3]
                     && !tile_last[4] && !unit_busy;

    // Activations and errors: BANKS banks of vectors, a copy for each core's port.
    wire [LINE-1:0] activation_port [0:CORES-1];
    wire [LINE-1:0] error_port [0:CORES-1];
    wire [LINE*CORES-1:0] activation_wide;
    logic [BANKS-1:0] activation_write, error_write;
    logic [BANKS*20-1:0] vector_address;
    logic [BANKS*LINE-1:0] vector_line;
    wire host_vectors = host_memory >= 3'd5;

    genvar n, b;
    generate
        for (n = 0; n < CORES; n = n + 1) begin : port
            // Forward: one vector, its lines side by side. Backward and gradient: each core its own.
            wire [15:0] own = stream_index * 16'(CORES) + 16'(n);
            wire [15:0] pair = half ? own >> 1 : own;
            wire [15:0] mine = is_forward ? stream_index : pair;
            wire [15:0] part = is_forward ? stream_term * 16'(CORES) + 16'(n) : stream_term - 16'd1;
            wire [15:0] seen = index_of[LAST-1] * 16'(CORES) + 16'(n);
            wire [15:0] seen_pair = half ? seen >> 1 : seen;
            // A backward job streams errors, and reads activations for the derivative of ReLU when a result is there.
            wire [15:0] activation_vector = by_word ? unit_vector : (is_backward ? seen_pair : mine);
            wire [15:0] activation_part = by_word ? unit_part : (is_backward ? out_of[LAST-1] : part);
            wire [19:0] activation_base = by_word && unit_read == 2'd1 ? words[8][19:0]
                : (by_word && unit_read == 2'd2 ? words[15][19:0] : words[11][19:0]);
            wire [19:0] activation_stride = by_word && unit_read == 2'd1 ? words[9][19:0]
                : (by_word && unit_read == 2'd2 ? words[16][19:0] : words[12][19:0]);
            wire [19:0] activation_address = activation_base
                + 20'(activation_vector >> BANK_BITS) * activation_stride + 20'(activation_part);
            wire [15:0] error_vector = by_word ? unit_vector : own;
            wire [15:0] error_part = by_word ? unit_error_part : (is_gradient ? stream_out : stream_term);
            wire [19:0] error_address = words[15][19:0] + 20'(error_vector >> BANK_BITS) * words[16][19:0]
                + 20'(error_part);
            wire reading = stream_valid || unit_reading || valids[LAST-1];
            wire reading_errors = stream_valid || unit_reading;
            logic [BANK_BITS-1:0] activation_bank, error_bank;
            always_ff @(posedge clock) begin
                activation_bank <= reading ? activation_vector[BANK_BITS-1:0] : host_bank[BANK_BITS-1:0];
                error_bank <= reading_errors ? error_vector[BANK_BITS-1:0] : host_bank[BANK_BITS-1:0];
            end
            wire [LINE*BANKS-1:0] activation_lines, error_lines;
            for (b = 0; b < BANKS; b = b + 1) begin : bank
                wire host = host_write && host_bank == 3'(b);
                wire [19:0] address = host ? host_address : vector_address[b*20+:20];
                wire [LINE-1:0] written = host ? host_line : vector_line[b*LINE+:LINE];
                memory #(.WIDTH(LINE), .DEPTH(VECTOR_LINES)) activations (
                    .clock(clock), .read_address(VB'(reading ? activation_address : host_address)),
                    .read_line(activation_lines[b*LINE+:LINE]),
                    .write((host && host_memory == 3'd5) || activation_write[b]), .write_address(VB'(address)),
                    .write_line(written)
                );
                memory #(.WIDTH(LINE), .DEPTH(VECTOR_LINES)) errors (
                    .clock(clock), .read_address(VB'(reading_errors ? error_address : host_address)),
                    .read_line(error_lines[b*LINE+:LINE]),
                    .write((host && host_memory == 3'd6) || error_write[b]), .write_address(VB'(address)),
                    .write_line(written)
                );
            end
            assign activation_port[n] = activation_lines[activation_bank*LINE+:LINE];
            assign error_port[n] = error_lines[error_bank*LINE+:LINE];
            assign activation_wide[n*LINE+:LINE] = activation_port[n];
        end
    endgenerate

    logic [2:0] host_memory_1;
    always_ff @(posedge clock) host_memory_1 <= host_memory;
    assign host_read = host_memory_1 == 3'd5 ? activation_port[0]
        : (host_memory_1 == 3'd6 ? error_port[0] : parameter_line[host_memory_1]);

    // Between two networks: a number at a time.
    word_unit #(.SIDE(SIDE)) by_words (
        .clock(clock), .reset(reset), .start(start && by_word), .kind(kind[1:0]), .outputs(words[1][15:0]),
        .batch(words[3][15:0]), .offset(words[2][15:0]), .shift(words[17][5:0]), .generator(words[31]),
        .factor(words[30]), .busy(unit_busy), .reading(unit_reading), .read(unit_read), .read_vector(unit_vector),
        .read_part(unit_part), .read_error_part(unit_error_part), .activation_line(activation_port[0]),
        .error_line(error_port[0]), .write(unit_write), .write_vector(unit_written), .write_part(unit_into),
        .write_line(unit_line)
    );

    // The cores.
    logic stream_1, first_1, last_1, bank_1;
    logic [15:0] index_1, term_1;
    always_ff @(posedge clock)
        {stream_1, first_1, last_1, bank_1, index_1, term_1} <=
            {!reset && stream_valid, stream_first, stream_last, stream_step[0], stream_index, stream_term};
    wire ones_1 = is_gradient && term_1 == 16'd0;
    wire [SIDE*64-1:0] core_upper [0:CORES-1];
    wire [SIDE*64-1:0] core_lower [0:CORES-1];
    generate
        for (n = 0; n < CORES; n = n + 1) begin : aap
            wire [15:0] own = index_1 * 16'(CORES) + 16'(n);
            wire [LINE-1:0] interleaved, load_line;
            wire [SIDE-1:0] load_rows, rows;
            wire signed [17:0] zero = half && !is_backward && !ones_1 ? $signed(words[21][17:0]) : 18'sd0;
            genvar r;
            for (r = 0; r < SIDE; r = r + 1) begin : row
                assign interleaved[r*32+:32] = activation_wide[(r*CORES+n)*32+:32];
                assign load_line[r*32+:32] = is_forward ? loaded[((r*CORES+n)%SIDE)*32+:32] : loaded[r*32+:32];
                assign load_rows[r] = load_1 && (is_forward ? load_index_1 % 16'(CORES) == 16'((r*CORES+n)/SIDE)
                                                            : load_index_1 == 16'(r));
                assign rows[r] = is_forward || (32'(own) < words[3] && (is_backward
                    || (ones_1 ? r == 0 : 32'(term_1 - 16'd1) * SIDE + 32'(r) < words[2])));
            end
            wire [SIDE-1:0] load_columns = is_forward ? SIDE'(1) << (load_index_1 / 16'(CORES)) : '1;
            wire [LINE-1:0] stream_line = is_forward ? interleaved
                : (is_backward ? error_port[n] : (ones_1 ? LINE'(words[24]) : activation_port[n]));
            wire [SIDE*64-1:0] upper, lower, upper_drained, lower_drained;
            wire valid_unused;
            core #(.SIDE(SIDE), .STREAM_BITS(STREAM_BITS)) aap_core (
                .clock(clock), .load_rows(load_rows), .load_columns(load_columns), .load_bank(load_step_1[0]),
                .load_by_row(!is_forward), .load_line(load_line), .stream_valid(stream_1), .stream_line(stream_line),
                .stream_rows(rows), .half(half && !is_backward && !ones_1), .pair(is_forward), .odd(own[0]),
                .zero(zero), .bank(bank_1), .held(is_gradient), .column_line(error_port[n]), .first(first_1),
                .last(last_1), .which(index_1[STREAM_BITS-1:0]), .out_valid(valid_unused), .out_upper(upper),
                .out_lower(lower), .drain_column(drain_at[$clog2(SIDE)-1:0]), .drain_first_row(biases_tile),
                .upper_drained(upper_drained), .lower_drained(lower_drained)
            );
            assign core_upper[n] = is_gradient ? upper_drained : upper;
            assign core_lower[n] = is_gradient ? lower_drained : lower;
        end
    endgenerate

    // Output units: forward and gradient sum over the cores (a pair's second vector is unit 1's); backward, one a core.
    logic [SIDE*64-1:0] total_upper, total_lower;
    integer i, c;
    always_comb begin
        total_upper = '0;
        total_lower = '0;
        for (c = 0; c < CORES; c = c + 1)
            for (i = 0; i < SIDE; i = i + 1) begin
                total_upper[i*64+:64] = total_upper[i*64+:64] + core_upper[c][i*64+:64];
                total_lower[i*64+:64] = total_lower[i*64+:64] + core_lower[c][i*64+:64];
            end
    end
    wire [LINE-1:0] unit_value [0:BANKS-1];
    wire [SIDE*16-1:0] unit_quantised [0:BANKS-1];
    generate
        for (n = 0; n < BANKS; n = n + 1) begin : unit
            logic [SIDE*64-1:0] upper_0, lower_0;
            always_ff @(posedge clock)
                if (is_backward) begin
                    upper_0 <= core_upper[n < CORES ? n : 0];
                    lower_0 <= core_lower[n < CORES ? n : 0];
                end else begin
                    upper_0 <= total_upper;
                    lower_0 <= n == 1 ? total_upper : total_lower;
                end
            genvar l;
            for (l = 0; l < SIDE; l = l + 1) begin : lane
                finish_lane finish (
                    .clock(clock), .upper(upper_0[l*64+:64]), .lower(lower_0[l*64+:64]),
                    .affine(affine_of[SUMMED+1]), .shift(words[17][5:0]), .mantissa(words[19][15:0]),
                    .scale_shift(words[20][5:0]),
                    .bias(is_forward ? biases[step_of[BIASED]][l*32+:32] : 32'd0), .bias_shift(words[18][5:0]),
                    .relu(relu), .tanh(tanh), .quantum(words[22][15:0]), .quantum_shift(words[23][4:0]),
                    .value(unit_value[n][l*32+:32]), .quantised(unit_quantised[n][l*16+:16])
                );
            end
        end
    endgenerate

    // Results to memory.
    assign gradient_write = valids[LAST] && is_gradient;
    assign gradient_line = unit_value[0];
    assign gradient_address = term_of[LAST] == 16'd0 ? words[10][19:0] + 20'(out_of[LAST])
        : words[8][19:0] + (20'(out_of[LAST]) * 20'(SIDE) + 20'(index_of[LAST])) * words[9][19:0]
          + 20'(term_of[LAST] - 16'd1);
    integer u, w;
    logic [15:0] vector;
    logic [BANK_BITS-1:0] into;
    logic [LINE-1:0] result;
    logic wanted;
    always_comb begin
        activation_write = '0;
        error_write = '0;
        vector_address = '0;
        vector_line = '0;
        for (u = 0; u < BANKS; u = u + 1) begin
            vector = is_backward ? index_of[LAST] * 16'(CORES) + 16'(u)
                : (half && !quantise ? index_of[LAST] * 16'd2 + 16'(u) : index_of[LAST]);
            wanted = valids[LAST] && !is_gradient
                && (is_backward ? u < CORES && 32'(vector) < words[3] : (u == 0 || (half && !quantise && u == 1)));
            into = vector[BANK_BITS-1:0];
            result = unit_value[u];
            for (w = 0; w < SIDE; w = w + 1) begin
                if (quantise) result[w*32+:32] = {unit_quantised[1][w*16+:16], unit_quantised[0][w*16+:16]};
                // The derivative of ReLU: of a whole activation its sign, of 16 bits whether it is 0.
                if (is_backward && mask && (half
                        ? (vector[0] ? activation_port[u < CORES ? u : 0][w*32+16+:16] : activation_port[u < CORES ? u : 0][w*32+:16]) == 16'd0
                        : $signed(activation_port[u < CORES ? u : 0][w*32+:32]) <= 0))
                    result[w*32+:32] = 32'd0;
            end
            if (wanted) begin
                activation_write[into] = is_forward;
                error_write[into] = is_backward;
                vector_address[into*20+:20] = words[13][19:0] + 20'(vector >> BANK_BITS) * words[14][19:0]
                    + 20'(out_of[LAST]);
                vector_line[into*LINE+:LINE] = result;
            end
        end
        if (unit_write) begin
            into = unit_written[BANK_BITS-1:0];
            activation_write[into] = kind[1:0] == 2'd0;
            error_write[into] = kind[1:0] != 2'd0;
            vector_address[into*20+:20] = words[13][19:0] + 20'(unit_written >> BANK_BITS) * words[14][19:0]
                + 20'(unit_into);
            vector_line[into*LINE+:LINE] = unit_line;
        end
    end
endmodule
