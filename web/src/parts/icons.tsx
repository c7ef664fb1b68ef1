/** Line icons, 16 units wide. */
const PATHS = {
  home: 'M2.5 7.5 8 3l5.5 4.5V13H10V9.5H6V13H2.5z',
  dags: 'M3 3h4v3H3zM9 10h4v3H9zM3 10h4v3H3zM5 6v4M5 8h6v2',
  runs: 'M4 3v10l9-5z',
  tasks: 'M3 4.2l1 1 1.8-2M3 8.2l1 1 1.8-2M3 12.2l1 1 1.8-2M8 4.5h5.5M8 8.5h5.5M8 12.5h5.5',
  answer: 'M2.5 3.5h11v7.5H8L5 13.5V11H2.5zM6.3 6.2c.3-1.6 3.4-1.4 3.4.1 0 1-1.6 1-1.6 2M8 9.6v.1',
  assets: 'M8 2.5 13 5v6l-5 2.5L3 11V5zM3 5l5 2.5L13 5M8 7.5v6',
  tables: 'M2.5 3.5h11v9h-11zM2.5 6.5h11M2.5 9.5h11M6.5 6.5v6',
  backfills: 'M3 8a5 5 0 1 0 1.5-3.5L3 6M3 2.8V6h3.2M8 5.5V8l2 1.5',
  queues: 'M3 4h10M3 8h10M3 12h6',
  pools: 'M3 3h10v10H3zM3 9h10M6.5 9v4M9.5 9v4',
  bundles: 'M3 5.5 8 3l5 2.5v5L8 13l-5-2.5zM3 5.5 8 8l5-2.5M8 8v5M5.5 4.2l5 2.6',
  imports: 'M8 2.8 14 13H2zM8 6.5V9.5M8 11.2v.3',
  variables: 'M5 3c-2 0 0 5-2 5 2 0 0 5 2 5M11 3c2 0 0 5 2 5-2 0 0 5-2 5',
  connections: 'M6 9.5 9.8 6.3M5 8 3.4 9.6a2.2 2.2 0 0 0 3.1 3.1L8 11M8 5l1.5-1.6a2.2 2.2 0 0 1 3.1 3.1L11 8',
  audit: 'M4 2.5h8v11H4zM6 5.5h4M6 8h4M6 10.5h2.5',
  settings: 'M3 5h6M12 5h1M3 11h1M7 11h6M10.5 3.5v3M5.5 9.5v3',
  flower: 'M8 8m-1.8 0a1.8 1.8 0 1 0 3.6 0a1.8 1.8 0 1 0-3.6 0M8 6.2V2.5M8 9.8v3.7M9.8 8h3.7M6.2 8H2.5',
  search: 'M7 2.8a4.2 4.2 0 1 0 0 8.4a4.2 4.2 0 1 0 0-8.4M10.2 10.2l3 3',
  close: 'M4 4l8 8M12 4l-8 8',
  menu: 'M2.5 4.5h11M2.5 8h11M2.5 11.5h11',
  star: 'M8 2.6l1.7 3.5 3.8.5-2.8 2.7.7 3.8L8 11.3l-3.4 1.8.7-3.8L2.5 6.6l3.8-.5z',
  play: 'M5 3.5v9l7-4.5z',
  pause: 'M5.5 3.5v9M10.5 3.5v9',
  clear: 'M3.2 8a4.8 4.8 0 1 0 1.4-3.4L3 6.2M3 3v3.2h3.2',
  check: 'M3.5 8.5l3 3 6-7',
  down: 'M4 6l4 4 4-4',
  right: 'M6 4l4 4-4 4',
  left: 'M10 4L6 8l4 4',
  more: 'M3.5 8h.01M8 8h.01M12.5 8h.01',
  theme: 'M12.9 9.7A5.4 5.4 0 0 1 6.3 3.1a5.4 5.4 0 1 0 6.6 6.6z',
  user: 'M8 8.2a2.6 2.6 0 1 0 0-5.2a2.6 2.6 0 1 0 0 5.2M3 13.2c.6-2.2 2.5-3.2 5-3.2s4.4 1 5 3.2',
  clock: 'M8 2.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 1 0 0-11M8 5v3.2l2 1.3',
  keyboard: 'M2 4.5h12v7H2zM4.5 7h.01M7 7h.01M9.5 7h.01M11.8 7h.01M5 9.3h6',
  copy: 'M6 6h7v7H6zM10 6V3H3v7h3',
  download: 'M8 2.5v7.5M4.8 7.2 8 10.3l3.2-3.1M3 13h10',
  plus: 'M8 3v10M3 8h10',
  trash: 'M3 4.5h10M6.5 4.5V3h3v1.5M4.5 4.5l.5 8.5h6l.5-8.5',
  edit: 'M3 13l.6-2.8 7-7 2.2 2.2-7 7z',
  out: 'M6.5 3H3v10h3.5M7 8h6M10.5 5.5 13 8l-2.5 2.5',
  up: 'M4 10l4-4 4 4',
  sort: 'M5 6.5 8 3.5l3 3M5 9.5l3 3 3-3',
  link: 'M9 3h4v4M13 3 7.5 8.5M6.5 4H3v9h9V9.5',
} as const
export type IconName = keyof typeof PATHS

export function Icon({ name, filled = false }: { name: IconName; filled?: boolean }) {
  return (
    <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" fill={filled ? 'currentColor' : 'none'} stroke="currentColor" stroke-width={name === 'more' ? 2.4 : 1.4} stroke-linecap="round" stroke-linejoin="round">
      <path d={PATHS[name]} />
    </svg>
  )
}

export function Logo() {
  return (
    <svg viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="7" fill="#4f46c9" />
      <g fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round" stroke-linejoin="round">
        <path d="M7 10l5 6-5 6" />
        <path d="M14 10l5 6-5 6" opacity=".75" />
        <path d="M21 10l5 6-5 6" opacity=".5" />
      </g>
    </svg>
  )
}
